"""``redis-stream``: a consumer group reads a stream, and acknowledges with XACK what is stored."""

from __future__ import annotations

import json
import logging
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import redis
from pydantic import Field

from ..errors import BrokerUnavailable, PublishRejected
from ..model import Delivery
from .base import AdapterOptions, Lag, PullAdapter
from .process_name import is_gone, process_name
from .redis_client import (
    BLOCK_GRACE,
    COMMAND_TIMEOUT,
    RedisUrl,
    acl_identity,
    as_text,
    connect,
    execute,
    shown_url,
    to_publish_error,
    translated,
)

logger = logging.getLogger(__name__)

#: Milliseconds of idle time that a given-back entry shows: any consumer may claim it at once.
GIVEN_BACK_IDLE = 3_600_000

#: Entries the first read asks for, while their size is not known: COUNT has no byte bound (redis#11116).
FIRST_COUNT = 50

#: Seconds between two looks at what other consumers left, at most.
LONGEST_CLAIM_INTERVAL = 5.0

#: A read that is shorter by its BLOCK than this would spin.
SHORTEST_BLOCK = timedelta(milliseconds=10)

_RAW = ("XREADGROUP", "XRANGE", "XPENDING", "XCLAIM")
_CONTENT_TYPE = ("content-type", "content_type")

#: An entry's fields as they were sent: name, value, name, value …
Fields = Sequence[bytes]


class RedisStreamOptions(AdapterOptions):
    """Options of a ``redis-stream`` adapter."""

    #: The server's address.
    url: RedisUrl = Field(repr=False)
    #: The stream's key.
    stream: str = Field(min_length=1)
    #: The consumer group; it is created at the start of the stream where it is missing.
    group: str = Field(default="switchboard", min_length=1)
    #: The entry field that holds the body, the others being headers; empty: the entry's fields are the body.
    body: str = ""


class RedisStream(PullAdapter):
    """Reads a Redis stream: ``RedisStream("deploys", url=…, stream="deploys", queue="deploys")``.

    Every option of ``RedisStreamOptions`` is a keyword; ``pydantic.ValidationError`` for a wrong one. At least
    once: an entry is acknowledged after its todo is stored, and one that is not is delivered again, to this
    consumer after a lost connection, to another one when this one's process is gone or silent for ``claim_idle``.
    """

    transport = "redis-stream"
    options_class = RedisStreamOptions

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name)
        self._options = RedisStreamOptions(**options)
        self._held: set[bytes] = set()
        self._lock = threading.Lock()
        self._reader: redis.Redis | None = None
        self._commands: redis.Redis | None = None
        self._identity = ""
        self._group_known = False
        self._own_pending_unknown = True
        self._next_claim = 0.0
        self._count = FIRST_COUNT

    @property
    def options(self) -> RedisStreamOptions:
        return self._options

    @property
    def namespace(self) -> str:
        return f"redis:{self._options.stream}"

    @property
    def broker(self) -> str:
        return shown_url(self._options.url)

    def identity(self) -> str:
        if not self._identity:
            with translated(f"identity on {self.broker}"):
                self._identity = acl_identity(self._client(), self._options.url)
        return self._identity

    # Reading

    def receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        try:
            with translated(f"receive from {self.broker} stream {self._options.stream}"):
                return self._receive(limit, limit_bytes, timeout)
        except BrokerUnavailable:
            # A reply that was lost on the way left its entries pending with us.
            self._own_pending_unknown = True
            self._disconnect()
            raise

    def _receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        identity = self.identity()
        if not self._group_known:
            self._create_group()
            self._group_known = True
        limit = min(limit, self._count)
        try:
            entries = self._left_behind(limit) or self._new(limit, timeout)
        except redis.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            # Flushed, deleted, or a failover: made anew by the next try, which comes with backoff (dapr#3219).
            self._group_known = False
            raise BrokerUnavailable(f"consumer group {self._options.group} is gone") from error
        with self._lock:
            self._held.update(entry_id for entry_id, _ in entries)
        self._adapt(entries, limit_bytes)
        return [self._delivery(entry_id, fields, identity) for entry_id, fields in entries]

    def _new(self, limit: int, timeout: timedelta) -> list[tuple[bytes, Fields]]:
        if self._reader is None:
            self._reader = connect(self._options.url, timeout=timeout + BLOCK_GRACE, raw_commands=_RAW)
        block = max(timeout, SHORTEST_BLOCK)
        options = self._options
        reply = execute(
            self._reader,
            "XREADGROUP", "GROUP", options.group, process_name(),
            "COUNT", limit, "BLOCK", int(block.total_seconds() * 1000), "STREAMS", options.stream, ">",
        )  # fmt: skip
        return [(entry_id, fields) for entry_id, fields in reply[0][1]] if reply else []

    def _left_behind(self, limit: int) -> list[tuple[bytes, Fields]]:
        """Entries that are pending with nobody who works on them: this consumer's own first, then others'."""
        if self._own_pending_unknown:
            with self._lock:
                held = set(self._held)
            own = [entry_id for entry_id in self._pending(process_name(), limit + len(held)) if entry_id not in held]
            self._own_pending_unknown = len(own) > limit
            if own:
                return self._bodies(own[:limit])
        if time.monotonic() < self._next_claim:
            return []
        found: list[tuple[bytes, Fields]] = []
        for consumer in self._client().xinfo_consumers(self._options.stream, self._options.group):
            found += self._claim(consumer, limit - len(found))
            if len(found) >= limit:
                return found
        interval = min(self._options.claim_idle.total_seconds() / 4, LONGEST_CLAIM_INTERVAL)
        self._next_claim = time.monotonic() + interval
        return found

    def _claim(self, consumer: dict[str, Any], limit: int) -> list[tuple[bytes, Fields]]:
        name = consumer["name"].decode("utf-8", "replace")
        if name == process_name():
            return []
        gone = is_gone(name)
        if not consumer["pending"]:
            if gone:
                # Only with nothing pending: DELCONSUMER throws pending entries away (redis#9745).
                self._client().xgroup_delconsumer(self._options.stream, self._options.group, name)
            return []
        idle = 0 if gone else _milliseconds(self._options.claim_idle)
        entries = self._bodies(self._pending(name, limit, idle))
        if not entries:
            return []
        # JUSTID: taking over is no delivery, and must not be counted as one.
        claimed = set(self._xclaim([entry_id for entry_id, _ in entries], "JUSTID", min_idle=idle))
        return [entry for entry in entries if entry[0] in claimed]

    def _pending(self, consumer: str, limit: int, idle: int = 0) -> list[bytes]:
        condition = ("IDLE", idle) if idle else ()
        rows = execute(
            self._client(),
            "XPENDING",
            self._options.stream,
            self._options.group,
            *condition,
            "-",
            "+",
            limit,
            consumer,
        )
        return [row[0] for row in rows]

    def _bodies(self, entry_ids: Sequence[bytes]) -> list[tuple[bytes, Fields]]:
        """The entries with these ids; those that are no longer in the stream are acknowledged and reported."""
        pipeline = self._client().pipeline(transaction=False)
        for entry_id in entry_ids:
            execute(pipeline, "XRANGE", self._options.stream, entry_id, entry_id)
        found = {
            entry_id: entries[0][1] for entry_id, entries in zip(entry_ids, pipeline.execute(), strict=True) if entries
        }
        lost = [entry_id for entry_id in entry_ids if entry_id not in found]
        if lost:
            self._client().xack(self._options.stream, self._options.group, *lost)
            logger.error(
                "adapter %s: %d pending entries were trimmed or deleted at the source before they were stored: %s",
                self.name,
                len(lost),
                ", ".join(entry_id.decode() for entry_id in lost[:10]),
                extra={"adapter": self.name, "broker": self.broker},
            )
        return list(found.items())

    def _adapt(self, entries: Iterable[tuple[bytes, Fields]], limit_bytes: int) -> None:
        sizes = [sum(map(len, fields)) for _, fields in entries]
        if sizes:
            average = max(1, sum(sizes) // len(sizes))
            self._count = max(1, min(self._count * 4, limit_bytes // average))

    def _create_group(self) -> None:
        try:
            # At 0, not at $, which loses what is there already (flightctl#2227); the keys dedup what comes again.
            self._client().xgroup_create(self._options.stream, self._options.group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _delivery(self, entry_id: bytes, fields: Fields, identity: str) -> Delivery:
        native_id = entry_id.decode("ascii")
        if not self._options.body:
            return Delivery(fields_as_json(fields), native_id, identity, content_type="application/json")
        name = self._options.body.encode()
        bodies = [value for field, value in _pairs(fields) if field == name]
        headers = {_text(field): _text(value) for field, value in _pairs(fields) if field != name}
        content_type = next((value for key, value in headers.items() if key.lower() in _CONTENT_TYPE), "")
        if len(bodies) == 1:
            return Delivery(bodies[0], native_id, identity, headers, content_type)
        problem = f"the entry has {len(bodies) or 'no'} field{'s' * (len(bodies) > 1)} {self._options.body!r}"
        return Delivery(fields_as_json(fields), native_id, identity, headers, content_type, invalid=problem)

    # Acknowledging

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        entry_ids = _entry_ids(deliveries)
        with translated(f"acknowledge on {self.broker} stream {self._options.stream}"):
            self._client().xack(self._options.stream, self._options.group, *entry_ids)
        self._let_go(entry_ids)

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        with translated(f"keep on {self.broker} stream {self._options.stream}"):
            self._xclaim(_entry_ids(deliveries), "JUSTID")

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        entry_ids = _entry_ids(deliveries)
        idle = max(GIVEN_BACK_IDLE, _milliseconds(self._options.claim_idle))
        with translated(f"give back to {self.broker} stream {self._options.stream}"):
            self._xclaim(entry_ids, "IDLE", idle, "JUSTID")
        self._let_go(entry_ids)

    def _xclaim(self, entry_ids: Sequence[bytes], *how: str | int, min_idle: int = 0) -> list[bytes]:
        options = self._options
        claimed: list[bytes] = execute(
            self._client(), "XCLAIM", options.stream, options.group, process_name(), min_idle, *entry_ids, *how
        )
        return claimed

    def _let_go(self, entry_ids: Iterable[bytes]) -> None:
        with self._lock:
            self._held.difference_update(entry_ids)

    # The rest of the interface

    def lag(self) -> Lag:
        with translated(f"lag of {self.broker} stream {self._options.stream}"):
            for group in self._client().xinfo_groups(self._options.stream):
                if group["name"] == self._options.group.encode():
                    return Lag(unread=group.get("lag"), pending=group["pending"])
        return Lag(unread=None, pending=0)

    def publish(self, body: bytes, headers: dict[str, str]) -> str:
        fields: dict[Any, Any] = {**headers, self._options.body: body} if self._options.body else _as_fields(body)
        with translated(f"publish to {self.broker} stream {self._options.stream}", to_publish_error):
            entry_id = self._client().xadd(self._options.stream, fields)
        return as_text(entry_id)

    def close(self) -> None:
        self._disconnect()

    def _client(self) -> redis.Redis:
        with self._lock:
            if self._commands is None:
                self._commands = connect(self._options.url, timeout=COMMAND_TIMEOUT, raw_commands=_RAW)
            return self._commands

    def _disconnect(self) -> None:
        with self._lock:
            clients, self._reader, self._commands = (self._reader, self._commands), None, None
            self._identity = ""
        for client in clients:
            if client is not None:
                client.close()


def fields_as_json(fields: Fields) -> bytes:
    """An entry's fields as the body: a JSON object of them.

    Where a name repeats or something is not UTF-8: an array of name and value pairs, with ``{"base64": …}`` for
    what is not text, so that nothing is lost. The same fields always give the same bytes.
    """
    try:
        texts = [field.decode("utf-8") for field in fields]
    except UnicodeDecodeError:
        texts = []
    pairs: object
    if texts and len(set(texts[::2])) == len(texts) // 2:
        pairs = dict(zip(texts[::2], texts[1::2], strict=True))
    else:
        pairs = [[_json_value(name), _json_value(value)] for name, value in _pairs(fields)]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":")).encode()


def _json_value(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}


def _as_fields(body: bytes) -> dict[str, str]:
    """The fields that a JSON object of texts and numbers stands for; a number is its own text."""
    try:
        value = json.loads(body, parse_int=str, parse_float=str)
        texts = isinstance(value, dict) and value and all(isinstance(field, str) for field in value.values())
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        texts = False
    if not texts:
        raise PublishRejected(
            "publish: the adapter has no body field, so a message is a JSON object of its fields, texts or numbers"
        )
    fields: dict[str, str] = value
    return fields


def _pairs(fields: Fields) -> Iterable[tuple[bytes, bytes]]:
    return zip(fields[::2], fields[1::2], strict=True)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").replace("\x00", "\ufffd")


def _entry_ids(deliveries: Iterable[Delivery]) -> list[bytes]:
    return [(delivery.native_id or "").encode("ascii") for delivery in deliveries]


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
