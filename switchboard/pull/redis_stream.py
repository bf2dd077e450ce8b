"""``redis-stream``: a consumer group reads a stream, and acknowledges with XACK what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import redis
from pydantic import Field

from ..errors import BrokerUnavailable, PublishRejected
from ..finding import Finding
from ..model import Delivery
from ..process_name import is_gone, process_name
from .base import Freed, Lag, Outgoing
from .redis_adapter import FREED_AT_ONCE, LONGEST_NAME, SHORTEST_BLOCK, RedisAdapter, RedisOptions
from .redis_client import as_text, execute, to_ack_error, translated
from .redis_inspection import denied_when_run, inspect_rights
from .stream_fields import Fields, deliver, fields_of
from .stream_inspection import harmless, inspect_stream

#: Milliseconds of idle time that a given-back entry shows: any consumer may claim it at once.
GIVEN_BACK_IDLE = 3_600_000

#: Milliseconds: an entry's id of its server's making is larger (September 2001).
EARLIEST_TIME = 10**12

#: The consumer with which entries are parked that wait for their todo's end: never claimed from, nor removed.
PARKED = "switchboard.stored"

_NO_GROUP = ("NOGROUP", "no such key", "ERR no such key")

#: Removes a consumer only where nothing is pending with it, in one step: DELCONSUMER throws pending entries away
#: (redis#9745), and a consumer that was thought dead may read again at any moment.
_REMOVE_EMPTY = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if consumer[2] == ARGV[2] and consumer[4] == 0 then
    return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
  end
end
return -1
"""


class RedisStreamOptions(RedisOptions):
    """Options of a ``redis-stream`` adapter."""

    can_complete: ClassVar[bool] = True

    #: The stream's key.
    stream: str = Field(min_length=1, max_length=LONGEST_NAME)
    #: The consumer group; it is created at the start of the stream where it is missing.
    group: str = Field(default="switchboard", min_length=1)
    #: The entry field that holds the body, the others being headers; empty: the entry's fields are the body.
    body: str = ""
    #: The header or field that holds a producer's own key, so that its retry is the same todo; empty: none does.
    #: One of more than 500 bytes is told by its SHA-256.
    key: str = ""
    #: Whether what is stored is deleted from the stream as well.
    delete: bool = Field(default=False, strict=True)


class RedisStream(RedisAdapter):
    """Reads a Redis stream: ``RedisStream("deploys", url=…, stream="deploys", queue="deploys")``.

    Every option of ``RedisStreamOptions`` is a keyword; ``pydantic.ValidationError`` for a wrong one. At least
    once: an entry is acknowledged after its todo is stored, and one that is not is delivered again, to this
    consumer after a lost connection, to another one when this one's process is gone or silent for ``claim_idle``.
    """

    transport = "redis-stream"
    options_class = RedisStreamOptions
    length_command = "XLEN"
    raw_commands = ("XREADGROUP", "XRANGE", "XPENDING", "XCLAIM")

    def __init__(self, name: str, **options: Any) -> None:
        self._options = RedisStreamOptions(**options)
        super().__init__(name, self._options.url)
        self._held: set[str] = set()
        self._group_known = False
        self._acks_and_deletes_in_one = True

    @property
    def options(self) -> RedisStreamOptions:
        return self._options

    @property
    def namespace(self) -> str:
        return f"redis:{self._options.stream}"

    @property
    def place(self) -> str:
        return f"stream {self._options.stream}"

    @property
    def reader_identity(self) -> str:
        return self._options.group

    @property
    def carries_headers(self) -> bool:
        return bool(self._options.body)

    # Reading

    def receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        block = max(timeout, SHORTEST_BLOCK)
        with self.reading(), self._group():
            reply = self._execute(
                "XREADGROUP", "GROUP", self._options.group, process_name(),
                "COUNT", self._affordable(limit, limit_bytes),
                "BLOCK", _milliseconds(block), "STREAMS", self._options.stream, ">", on=self.reader(block),
            )  # fmt: skip
            return self._deliveries([(*entry, 1) for entry in reply[0][1]] if reply else [], limit_bytes)

    def left_behind(self, limit: int, limit_bytes: int) -> list[Delivery]:
        with self.reading(), self._group():
            limit = self._affordable(limit, limit_bytes)
            found = self._own_unheld(limit)
            for consumer in self.client().xinfo_consumers(self._options.stream, self._options.group):
                if len(found) >= limit:
                    break
                found += self._claim(consumer, limit - len(found))
            return self._deliveries(found, limit_bytes)

    def _affordable(self, limit: int, limit_bytes: int) -> int:
        return self.affordable(limit, limit_bytes, self._options.stream)

    def _own_unheld(self, limit: int) -> list[tuple[bytes, Fields, int]]:
        """Entries pending with this consumer that it does not hold: their reply was lost on the way."""
        with self._lock:
            held = set(self._held)
        own = self._pending(process_name(), limit + len(held))
        return self._bodies([entry for entry in own if as_text(entry[0]) not in held][:limit])

    def _claim(self, consumer: dict[str, Any], limit: int) -> list[tuple[bytes, Fields, int]]:
        name = as_text(consumer["name"])
        if name in (process_name(), PARKED):
            return []
        if not consumer["pending"]:
            if self._is_dead(name, consumer["idle"]):
                self._remove_empty(name)
            return []
        idle = 0 if is_gone(name) else _milliseconds(self._options.claim_idle)
        pending = self._pending(name, limit, idle)
        entries = self._bodies(pending)
        if not entries:
            return []
        # As idle as they were seen, at least: of two who look at the same time, the second must not take them from the
        # first. JUSTID: taking over is no delivery, and must not be counted as one.
        seen = max(1, idle, min(entry_idle for _, _, entry_idle in pending))
        claimed = set(self._xclaim([entry_id for entry_id, _, _ in entries], "JUSTID", min_idle=seen))
        return [entry for entry in entries if entry[0] in claimed]

    def _pending(self, consumer: str, limit: int, idle: int = 0) -> list[tuple[bytes, int, int]]:
        """Ids, delivery counts and idle milliseconds of what is pending with that consumer."""
        options = self._options
        condition = ("IDLE", idle) if idle else ()
        rows = self._execute("XPENDING", options.stream, options.group, *condition, "-", "+", limit, consumer)
        return [(row[0], row[3], row[2]) for row in rows]

    def _bodies(self, pending: Sequence[tuple[bytes, int, int]]) -> list[tuple[bytes, Fields, int]]:
        """These entries with their fields; those that are no longer in the stream are acknowledged and reported."""
        if not pending:
            return []
        client = self.client()
        pipeline = client.pipeline(transaction=False)
        for entry_id, _, _ in pending:
            execute(pipeline, "XRANGE", self._options.stream, entry_id, entry_id)
        found, lost = [], []
        for (entry_id, tries, _), entries in zip(pending, pipeline.execute(), strict=True):
            if entries:
                found.append((entry_id, entries[0][1], max(1, tries)))
            else:
                lost.append(entry_id)
        if lost:
            pipeline = client.pipeline(transaction=False)
            for entry_id in lost:
                pipeline.xack(self._options.stream, self._options.group, entry_id)
            # Of two that find it missing at the same time, the one whose acknowledgement counts says so.
            acknowledged = zip(lost, pipeline.execute(), strict=True)
            self.report_lost([as_text(entry_id) for entry_id, ours in acknowledged if ours])
        return found

    def _deliveries(self, entries: Iterable[tuple[bytes, Fields, int]], limit_bytes: int) -> list[Delivery]:
        options = self._options
        identity = self.identity()
        deliveries = [
            deliver(as_text(entry_id), fields, tries, identity, body=options.body, key=options.key)
            for entry_id, fields, tries in entries
        ]
        with self._lock:
            self._held.update(delivery.handle for delivery in deliveries)
        self.learn_size(deliveries, limit_bytes)
        return deliveries

    # Acknowledging

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        handles = _handles(deliveries)
        with translated(f"acknowledge on {self.broker} {self.place}", to_ack_error):
            if self._options.delete:
                self._acknowledge_and_delete(handles)
            else:
                self.client().xack(self._options.stream, self._options.group, *handles)
        self._let_go(handles)

    def _acknowledge_and_delete(self, handles: Sequence[str]) -> None:
        options = self._options
        if self._acks_and_deletes_in_one:
            try:
                self._execute("XACKDEL", options.stream, options.group, "IDS", len(handles), *handles)
                return
            except redis.exceptions.NoPermissionError:
                self._acks_and_deletes_in_one = False
            except redis.ResponseError as error:
                if "unknown command" not in str(error).lower():
                    raise
                self._acks_and_deletes_in_one = False
        client = self.client()
        pipeline = client.pipeline(transaction=True)
        pipeline.xack(options.stream, options.group, *handles)
        pipeline.xdel(options.stream, *handles)
        pipeline.execute()

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        with translated(f"keep on {self.broker} {self.place}"):
            self._xclaim(_handles(deliveries), "JUSTID")

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        handles = _handles(deliveries)
        idle = max(GIVEN_BACK_IDLE, _milliseconds(self._options.claim_idle))
        with translated(f"give back to {self.broker} {self.place}"):
            self._xclaim(handles, "IDLE", idle, "JUSTID")
        self._let_go(handles)

    def park(self, deliveries: Sequence[Delivery]) -> None:
        handles = _handles(deliveries)
        with translated(f"park on {self.broker} {self.place}"):
            self._xclaim(handles, "JUSTID", consumer=PARKED)
        self._let_go(handles)

    def count_tries(self, deliveries: Sequence[Delivery], tries: int) -> None:
        with translated(f"count a try on {self.broker} {self.place}"):
            self._xclaim(_handles(deliveries), "RETRYCOUNT", tries, "JUSTID")

    def _xclaim(
        self, entry_ids: Sequence[str | bytes], *how: str | int, min_idle: int = 0, consumer: str = ""
    ) -> list[bytes]:
        options = self._options
        try:
            claimed: list[bytes] = self._execute(
                "XCLAIM", options.stream, options.group, consumer or process_name(), min_idle, *entry_ids, *how
            )
        except redis.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            # With the group its pending entries are gone: there is nothing to keep, and the next read makes it anew.
            self._group_known = False
            return []
        return claimed

    def _let_go(self, handles: Iterable[str]) -> None:
        with self._lock:
            self._held.difference_update(handles)

    # The rest of the interface

    def free_dead(self) -> Freed:
        deliveries = consumers = 0
        with translated(f"free what dead workers hold on {self.broker} {self.place}"):
            try:
                found = self.client().xinfo_consumers(self._options.stream, self._options.group)
            except redis.ResponseError as error:
                if not str(error).startswith(_NO_GROUP):
                    raise
                return Freed()
            for consumer in found:
                name = as_text(consumer["name"])
                if name in (process_name(), PARKED) or not self._is_dead(name, consumer["idle"]):
                    continue
                if consumer["pending"]:
                    deliveries += self._let_anyone_take(name)
                else:
                    consumers += self._remove_empty(name)
        return Freed(deliveries, consumers)

    def _is_dead(self, consumer: str, idle: int) -> bool:
        return is_gone(consumer) or idle > _milliseconds(self._options.claim_idle)

    def _let_anyone_take(self, consumer: str) -> int:
        """Lets what that consumer holds look idle for long, where it is; what another took meanwhile stays with it."""
        idle = max(GIVEN_BACK_IDLE, _milliseconds(self._options.claim_idle))
        pending = [entry for entry in self._pending(consumer, FREED_AT_ONCE) if entry[2] < idle]
        if not pending:
            return 0
        seen = max(1, min(entry_idle for _, _, entry_idle in pending))
        entry_ids = [entry_id for entry_id, _, _ in pending]
        return len(self._xclaim(entry_ids, "IDLE", idle, "JUSTID", min_idle=seen, consumer=consumer))

    def sent_at(self, delivery: Delivery) -> float | None:
        milliseconds = int(delivery.handle.partition("-")[0])
        # An id that its producer chose, such as 1-1, is no time.
        return milliseconds / 1000 if milliseconds > EARLIEST_TIME else None

    def lag(self) -> Lag:
        with translated(f"lag of {self.broker} {self.place}"):
            try:
                groups = self.client().xinfo_groups(self._options.stream)
            except redis.ResponseError as error:
                if "no such key" not in str(error):
                    raise
                return Lag(unread=0, pending=0)
        for group in groups:
            if as_text(group["name"]) == self._options.group:
                return Lag(unread=group.get("lag"), pending=group["pending"])
        return Lag(unread=None, pending=0)

    def inspect_source(self, client: redis.Redis, subject: str) -> Iterator[Finding]:
        options = self._options
        yield from inspect_stream(client, subject, options.stream, options.group, parks=options.ack == "complete")
        denied = denied_when_run(client, harmless(options.stream, options.group, delete=options.delete))
        yield from inspect_rights(client, self._url, subject, denied, [f"~{options.stream}"])

    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        options = self._options
        entries = []
        for number, message in enumerate(messages, 1):
            try:
                entries.append(fields_of(message, body=options.body, key=options.key))
            except PublishRejected as error:
                raise PublishRejected(f"message {number} of {len(messages)}: {error}") from error
        ids = self.in_one_step([("XADD", options.stream, "*", *entry) for entry in entries])
        return [as_text(entry_id) for entry_id in ids]

    def _execute(self, *command: Any, on: redis.Redis | None = None) -> Any:
        return execute(on or self.client(), *command)

    @contextmanager
    def _group(self) -> Iterator[None]:
        """The consumer group is there inside; where it vanished meanwhile, the next try makes it anew."""
        try:
            if not self._group_known:
                self._create_group()
                self._group_known = True
            yield
        except redis.ResponseError as error:
            if not str(error).startswith(_NO_GROUP):
                raise
            # Flushed, deleted, or a failover. It comes with backoff: a loop made 30 GB of logs a day (dapr#3219).
            self._group_known = False
            raise BrokerUnavailable(f"{self.place}: consumer group {self._options.group} is gone") from error

    def _create_group(self) -> None:
        try:
            # At 0, not at $, which loses what is there already (flightctl#2227); the keys dedup what comes again.
            self.client().xgroup_create(self._options.stream, self._options.group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _remove_empty(self, consumer: str) -> bool:
        try:
            removed = self._execute("EVAL", _REMOVE_EMPTY, 1, self._options.stream, self._options.group, consumer)
        except redis.exceptions.NoPermissionError:
            # Housekeeping: a user who may not run scripts keeps the empty consumers.
            return False
        return int(removed) >= 0


def _handles(deliveries: Iterable[Delivery]) -> list[str]:
    return [delivery.handle for delivery in deliveries]


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
