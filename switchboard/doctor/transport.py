"""Dramatiq's own transport at ``SWITCHBOARD_BROKER_URL``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from ..errors import BrokerUnavailable, ConfigError
from ..finding import Finding
from ..pull.redis_client import shown_url, translated
from ..pull.redis_inspection import PATIENCE, impatient, inspect_server
from ..redact import safe_text

SUBJECT = "Dramatiq's broker"


def check_transport() -> Iterator[Finding]:
    """Whether it is there, and keeps what it is given; raises ``SwitchboardError`` where it cannot be asked."""
    url = os.environ.get("SWITCHBOARD_BROKER_URL", "").strip()
    scheme = url.partition("://")[0]
    if not url:
        yield Finding(
            "transport", SUBJECT, "warning", "SWITCHBOARD_BROKER_URL is not set",
            "set it, unless a module of yours sets the broker itself",
        )  # fmt: skip
    elif scheme in ("redis", "rediss", "unix"):
        try:
            client = impatient(url)
            shown = shown_url(url)
        except (ValueError, TypeError):
            raise ConfigError("SWITCHBOARD_BROKER_URL: not an address that can be used") from None
        with closing(client), translated(f"connect to {shown}"):
            client.ping()
            yield Finding("transport", SUBJECT, "ok", f"{shown} answers")
            yield from inspect_server(client, url, SUBJECT)
    elif scheme in ("amqp", "amqps"):
        _open_amqp(url)
        yield Finding("transport", SUBJECT, "ok", f"{scheme}:// answers")
    else:
        raise ConfigError("SWITCHBOARD_BROKER_URL: expected redis://, rediss:// or amqp://")


def _open_amqp(url: str) -> None:
    try:
        import pika  # type: ignore[import-untyped]
        import pika.exceptions  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"SWITCHBOARD_BROKER_URL: needs `pip install 'dramatiq-switchboard[rabbitmq]'` ({error})"
        ) from error
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError):
        raise ConfigError("SWITCHBOARD_BROKER_URL: not an address that can be used") from None
    seconds = PATIENCE.total_seconds()
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = seconds
    parameters.connection_attempts = 1
    try:
        pika.BlockingConnection(parameters).close()
    except (pika.exceptions.AMQPError, OSError) as error:
        raise BrokerUnavailable(f"connect to {parameters.host}:{parameters.port}: {safe_text(repr(error))}") from error
