"""Redis connections as every Redis transport wants them, and the one map from the client's errors to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from pydantic import AfterValidator
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import AckFailed, BrokerUnavailable, PublishRejected, SwitchboardError
from ..redact import safe_text

#: How long a command that does not block may take.
COMMAND_TIMEOUT = timedelta(seconds=5)

#: How much longer than its block a blocking read may take before its connection is given up.
BLOCK_GRACE = timedelta(seconds=5)


#: Options an address may carry. Time limits, retries, decoding and protocol are ours; a password has its own place.
_URL_OPTIONS = frozenset(
    "db client_name ssl_cert_reqs ssl_ca_certs ssl_ca_path ssl_certfile ssl_keyfile ssl_check_hostname".split()
)


def _redis_url(url: str) -> str:
    expected = 'expected an address such as "redis://host:6379/0", "rediss://…" or "unix://…"'
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(expected)
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, keep_blank_values=True)
        shown_url(url)
        if "@" in parts.path and parts.scheme != "unix":
            # A password with an @ and a / of its own: what follows would be shown as the path.
            raise ValueError
    except ValueError:
        # The parser's own message can quote the password.
        raise ValueError(f"{expected}; special characters in a password must be percent-encoded") from None
    for option in options:
        if option not in _URL_OPTIONS:
            raise ValueError(f"option {option!r} cannot be set in the address")
    try:
        redis.ConnectionPool.from_url(url).make_connection()
    except (ValueError, TypeError):
        raise ValueError(expected) from None
    return url


#: A Redis address: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user and password.
RedisUrl = Annotated[str, AfterValidator(_redis_url)]


def as_sent(response: Any, **_: Any) -> Any:
    """A reply as the server sent it. The client's own callbacks make dicts, which lose a name that repeats."""
    return response


def connect(url: str, *, timeout: timedelta, raw_commands: tuple[str, ...] = ()) -> redis.Redis:
    """A client whose commands end after ``timeout`` and are never retried behind our back.

    Nothing is sent yet. redis-py 8's own defaults would hang a blocking read for a minute (redis-py#4125). The
    replies to ``raw_commands`` come as they were sent.
    """
    client: redis.Redis = redis.Redis.from_url(
        url,
        protocol=2,
        socket_timeout=timeout.total_seconds(),
        socket_connect_timeout=COMMAND_TIMEOUT.total_seconds(),
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        health_check_interval=0,
    )
    for command in raw_commands:
        client.set_response_callback(command, as_sent)
    return client


def execute(client: redis.Redis, *command: Any) -> Any:
    """Sends one command as it is written. ``Any``: a reply has the shape the server gives it."""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


def as_text(reply: Any) -> str:
    """A reply as text."""
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def shown_url(url: str) -> str:
    """The address without user, password and options."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def acl_identity(client: redis.Redis, url: str) -> str:
    """``redis acl: {user}``: what the server says, or the address's user where ``ACL WHOAMI`` is denied."""
    try:
        name = as_text(execute(client, "ACL WHOAMI"))
    except redis.ResponseError:
        name = unquote(urlsplit(url).username or "") or "default"
    return f"redis acl: {name}"


def to_consume_error(error: Exception, doing: str) -> SwitchboardError:
    """Ours for what the client raised while reading or acknowledging.

    Nothing Redis says there is about a message, so all of it may pass: no connection, no answer in time, a
    read-only replica after a failover, a server that loads or is out of memory, rights taken away.
    """
    unavailable = BrokerUnavailable(f"{doing}: {said_by(error)}")
    unavailable.answered = isinstance(error, redis.ResponseError | redis.AuthenticationError)
    return unavailable


def said_by(error: Exception) -> str:
    """What the client said, without the command that it quotes where a pipeline failed: that may hold a body."""
    return safe_text(f"{type(error).__name__}: {_PIPELINE.sub('', str(error))}")


def to_ack_error(error: Exception, doing: str) -> SwitchboardError:
    """Ours for what the client raised while acknowledging what is stored: it is safe, and is acknowledged later."""
    return AckFailed(f"{doing}: {said_by(error)}")


_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)

#: Refusals that pass, as the client has classes for them: it takes their code word off the message.
_PASSING_ERRORS = (
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    redis.BusyLoadingError,
    redis.AuthenticationError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.AskError,
)

#: What a write may be refused with that passes by itself; everything else the server answers is for good.
_PASSING_REFUSALS = frozenset(
    [
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "BUSY",
        "NOAUTH",
        "WRONGPASS",
        "MOVED",
        "ASK",
    ]
)


def to_publish_error(error: Exception, doing: str) -> SwitchboardError:
    """Ours for what the client raised while publishing: ``PublishRejected`` where trying again cannot help."""
    if isinstance(error, redis.DataError):
        return PublishRejected(f"{doing}: {said_by(error)}")
    if isinstance(error, redis.ResponseError) and not isinstance(error, _PASSING_ERRORS):
        refusal = _PIPELINE.sub("", str(error)).split(" ", 1)[0]
        if refusal not in _PASSING_REFUSALS:
            return PublishRejected(f"{doing}: {said_by(error)}")
    return BrokerUnavailable(f"{doing}: {said_by(error)}")


@contextmanager
def translated(doing: str, to_error: Callable[[Exception, str], SwitchboardError] = to_consume_error) -> Iterator[None]:
    """Turns what the client raises inside into ours, saying what was being done."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise to_error(error, doing) from error
