"""Redis: its errors as ours, and its addresses checked, and shown without credentials."""

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from redis._parsers.base import BaseParser

from switchboard import BrokerUnavailable, PublishRejected
from switchboard.pull.redis_client import (
    COMMAND_TIMEOUT,
    RedisUrl,
    acl_identity,
    connect,
    shown_url,
    to_consume_error,
    to_publish_error,
    translated,
)

address = TypeAdapter(RedisUrl)


def answered(line: str) -> Exception:
    """What redis-py raises for this answer of the server: of some it drops the first word, so only it knows."""
    error: Exception = BaseParser.parse_error(line)  # type: ignore[no-untyped-call]
    assert isinstance(error, redis.RedisError)
    return error


NO_ANSWER = [
    redis.ConnectionError("Error 111 connecting to localhost:6379"),
    redis.TimeoutError("Timeout reading from socket"),
    ConnectionResetError("reset"),
    TimeoutError("timed out"),
    OSError("no route to host"),
]

PASSING = [
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN Hash slot not served",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "BUSY Redis is busy running a script.",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "ERR max number of clients reached",
]

FOR_GOOD = [
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM this user has no permissions to run the 'xadd' command",
    "ERR unknown command 'XADD'",
    "ERR Invalid stream ID specified as stream command argument",
    "ERR wrong number of arguments for 'xadd' command",
]


@pytest.mark.parametrize("error", NO_ANSWER, ids=repr)
def test_no_answer_may_pass_in_both_directions(error: Exception) -> None:
    for to_error in (to_consume_error, to_publish_error):
        ours = to_error(error, "doing it")
        assert type(ours) is BrokerUnavailable
        assert str(ours).startswith("doing it: ")


@pytest.mark.parametrize("line", [*PASSING, *FOR_GOOD], ids=lambda line: line.split(",")[0][:30])
def test_whatever_is_answered_to_a_consumer_may_pass(line: str) -> None:
    ours = to_consume_error(answered(line), "receive from redis://h stream s")
    assert type(ours) is BrokerUnavailable
    assert str(ours).startswith("receive from redis://h stream s: ")


@pytest.mark.parametrize("line", PASSING, ids=lambda line: line.split()[0])
def test_a_refusal_of_a_message_that_passes_by_itself_is_no_rejection(line: str) -> None:
    assert type(to_publish_error(answered(line), "publish")) is BrokerUnavailable


@pytest.mark.parametrize("line", FOR_GOOD, ids=lambda line: line[:20])
def test_a_refusal_of_a_message_for_good_is_a_rejection(line: str) -> None:
    ours = to_publish_error(answered(line), "publish to redis://h stream s")
    assert type(ours) is PublishRejected
    assert str(ours).startswith("publish to redis://h stream s: ")


def test_a_message_that_the_client_cannot_even_send_is_a_rejection() -> None:
    assert type(to_publish_error(redis.DataError("Invalid input of type: 'dict'"), "publish")) is PublishRejected


def test_no_credential_is_in_an_error() -> None:
    raised = redis.ConnectionError("cannot reach redis://bot:hunter2@host/0")
    for to_error in (to_consume_error, to_publish_error):
        assert "hunter2" not in str(to_error(raised, "doing it"))


def test_what_is_raised_inside_comes_out_as_ours_with_its_cause() -> None:
    raised = redis.ConnectionError("refused")
    with (
        pytest.raises(BrokerUnavailable, match="lag of redis://h: ConnectionError: refused") as caught,
        translated("lag of redis://h"),
    ):
        raise raised
    assert caught.value.__cause__ is raised


def test_a_mistake_of_our_own_is_not_called_an_outage() -> None:
    with pytest.raises(KeyError), translated("lag"):
        raise KeyError("field")


# Addresses


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://redis.example", "redis://redis.example"),
        ("redis://redis.example:6379/0", "redis://redis.example:6379/0"),
        ("redis://bot:hunter2@redis.example:6379/0", "redis://redis.example:6379/0"),
        ("redis://hunter2@redis.example", "redis://redis.example"),
        ("rediss://:hunter2@redis.example/1?ssl_cert_reqs=none", "rediss://redis.example/1"),
        ("redis://redis.example?password=hunter2", "redis://redis.example"),
        ("redis://redis.example#hunter2", "redis://redis.example"),
        ("redis://bot:hunter2@[::1]:6380/0", "redis://[::1]:6380/0"),
        ("redis://bot:hunter%402@[fe80::1]", "redis://[fe80::1]"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("unix://bot:hunter2@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_credentials_and_options(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.from_regex(r"[!-~]{1,20}", fullmatch=True))
@example("@/")
def test_an_address_that_passes_can_be_shown_without_its_password_and_be_used(password: str) -> None:
    url = f"redis://bot:Zq8x{password}Zq9y@redis.example:6379/0"
    try:
        address.validate_python(url)
    except ValidationError:
        return
    shown = shown_url(url)
    assert "Zq8x" not in shown
    assert "Zq9y" not in shown
    connect(url, timeout=COMMAND_TIMEOUT).close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://bot:p%40ss@localhost:6379/0",
        "rediss://localhost:6380/1?ssl_cert_reqs=required",
        "unix:///run/redis.sock",
        "unix:///run/redis.sock?db=2",
        "redis://[::1]:6379",
        "redis://localhost?db=3",
    ],
)
def test_an_address_that_the_client_takes_is_taken(url: str) -> None:
    assert address.validate_python(url) == url
    connect(url, timeout=COMMAND_TIMEOUT).close()


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "amqp://localhost", "redis", "//localhost"])
def test_an_address_of_another_kind_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(ValidationError, match="redis://host:6379/0"):
        address.validate_python(url)


@pytest.mark.parametrize("option", ["decode_responses=true", "decode_responses=false", "protocol=3"])
def test_an_option_that_would_break_bodies_is_refused_by_name(option: str) -> None:
    with pytest.raises(ValidationError, match=option.split("=")[0]):
        address.validate_python(f"redis://localhost?{option}")


# Later it would be an error of the client's in the middle of a consumer.
@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:port",
        "redis://localhost:99999",
        "redis://bot:pass/word@localhost",
        "redis://[::1",
        "REDIS://localhost",
        " redis://localhost",
        "redis://localhost?socket_timeout=soon",
        "redis://localhost?no_such_option=1",
    ],
)
def test_an_address_that_the_client_cannot_use_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValidationError):
        address.validate_python(url)


@pytest.mark.parametrize("option", ["socket_timeout=0.01", "retry_on_timeout=true", "socket_connect_timeout=900"])
def test_no_option_of_an_address_outranks_the_timeouts(option: str) -> None:
    # A blocking read needs them as they are (redis-py#4125): the option is refused, or has no effect.
    try:
        url = address.validate_python(f"redis://localhost?{option}")
    except ValidationError:
        return
    client = connect(url, timeout=COMMAND_TIMEOUT)
    used = client.connection_pool.connection_kwargs
    client.close()
    assert used["socket_timeout"] == COMMAND_TIMEOUT.total_seconds()
    assert used["socket_connect_timeout"] == COMMAND_TIMEOUT.total_seconds()
    assert used["retry_on_timeout"] is False


def test_a_client_connects_to_nothing_by_itself() -> None:
    connect("redis://127.0.0.1:1", timeout=COMMAND_TIMEOUT).close()


def test_an_identity_needs_an_answer() -> None:
    with connect("redis://127.0.0.1:1", timeout=COMMAND_TIMEOUT) as client, pytest.raises(redis.ConnectionError):
        acl_identity(client, "redis://deploy-bot@127.0.0.1:1")
