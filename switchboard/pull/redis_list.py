"""``redis-list``: messages move onto a processing list of this worker, and are removed from it once stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import redis
from pydantic import Field, field_validator

from ..finding import Finding
from ..model import Delivery
from ..process_name import is_gone, process_name
from .base import Freed, Lag, Outgoing
from .redis_adapter import (
    FREED_AT_ONCE,
    LONGEST_NAME,
    SHORTEST_BLOCK,
    RedisAdapter,
    RedisOptions,
    refuse_all_but_bodies,
)
from .redis_client import as_text, execute, to_ack_error, translated
from .redis_inspection import denied_when_queued, inspect_rights, not_looked_at

#: Moves messages from a worker's processing list back to the source. Pushed before it is removed: a script is not
#: rolled back where a right is missing. What another has taken over by now is pushed in vain, and taken off again.
_GIVE_BACK = """
for _, body in ipairs(ARGV) do
  redis.call('RPUSH', KEYS[2], body)
  if redis.call('LREM', KEYS[1], -1, body) == 0 then
    redis.call('LREM', KEYS[2], -1, body)
  end
end
return #ARGV
"""

#: Seconds after which a worker that is gone, and left nothing, is forgotten.
FORGET_AFTER = 300.0

#: Messages that a read asks for beyond the first while it does not know how many there are.
FIRST_FILL = 64


class RedisListOptions(RedisOptions):
    """Options of a ``redis-list`` adapter."""

    #: The list's key: producers push on the left, and messages are taken from the right.
    list: str = Field(min_length=1, max_length=LONGEST_NAME)

    @field_validator("list")
    @classmethod
    def _can_share_a_slot(cls, name: str) -> str:
        if "}" in name and _hash_tag(name) is None:
            raise ValueError("a name with } and no {tag}: the keys beside it could not keep to its hash slot")
        return name


class RedisList(RedisAdapter):
    """Reads a Redis list: ``RedisList("jobs", url=…, list="jobs", queue="jobs")``.

    Every option of ``RedisListOptions`` is a keyword. At least once: a message moves to a processing list of this
    worker (BLMOVE) and is removed from it after its todo is stored (LREM). What a dead worker left there is found and
    stored. A list has no message ids: equal bodies are one todo while that is neither done nor failed.
    """

    transport = "redis-list"
    options_class = RedisListOptions
    length_command = "LLEN"

    def __init__(self, name: str, **options: Any) -> None:
        self._options = RedisListOptions(**options)
        super().__init__(name, self._options.url)
        source = self._options.list
        keys = f"{source if _hash_tag(source) else f'{{{source}}}'}:switchboard"
        #: The server's second at which each worker was last seen.
        self._workers = f"{keys}:workers"
        #: How often a message was tried, by the hash of its body; only of those tried more than once.
        self._tries = f"{keys}:tries"
        self._processing_prefix = f"{keys}:processing:"
        self._held: Counter[str] = Counter()
        #: Those whose tries this process has counted at the server.
        self._counted: set[str] = set()
        #: An acknowledgement was sent, and its answer was lost.
        self._doubtful = False
        self._fill = FIRST_FILL

    @property
    def options(self) -> RedisListOptions:
        return self._options

    @property
    def namespace(self) -> str:
        return f"redis:{self._options.list}"

    @property
    def place(self) -> str:
        return f"list {self._options.list}"

    @property
    def _processing(self) -> str:
        return self._processing_prefix + process_name()

    # Reading

    def receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        with self.reading():
            limit = self.affordable(limit, limit_bytes, self._options.list)
            # Before the first message is moved: a list that nobody knows of would never be swept.
            self._beat()
            first = self._move_first(max(timeout, SHORTEST_BLOCK))
            if first is None:
                return []
            asked = min(limit - 1, self._fill)
            more = self._move(self._options.list, asked)
            self._fill = max(FIRST_FILL, len(more) * 4 if len(more) == asked else len(more))
            return self._deliveries([first, *more], limit_bytes)

    def _move_first(self, block: timedelta) -> bytes | None:
        source, seconds = self._options.list, block.total_seconds()
        reader = self.reader(block)
        return self._body(execute(reader, "BLMOVE", source, self._processing, "RIGHT", "LEFT", seconds))

    def _move(self, source: str, limit: int) -> list[bytes]:
        """Moves at most ``limit`` messages from the right of ``source`` to this worker's list, in one round trip."""
        if limit <= 0:
            return []
        client = self.client()
        pipeline = client.pipeline(transaction=False)
        for _ in range(limit):
            execute(pipeline, "LMOVE", source, self._processing, "RIGHT", "LEFT")
        return [body for body in map(self._body, pipeline.execute()) if body is not None]

    @staticmethod
    def _body(reply: Any) -> bytes | None:
        return reply if isinstance(reply, bytes) else None

    def left_behind(self, limit: int, limit_bytes: int) -> list[Delivery]:
        with self.reading():
            limit = self.affordable(limit, limit_bytes, self._options.list)
            self._beat()
            found = self._own_unheld(limit)
            now = self._now()
            for name, seen in self._abandoned(now):
                if len(found) >= limit:
                    break
                source = self._processing_prefix + name
                found += self._move(source, limit - len(found))
                # Not at once: its last read may still wait at the server, and be granted a message yet.
                if now - seen > FORGET_AFTER and not execute(self.client(), "LLEN", source):
                    execute(self.client(), "HDEL", self._workers, name)
            return self._deliveries(found, limit_bytes)

    def _own_unheld(self, limit: int) -> list[bytes]:
        """Messages on this worker's list that it does not hold: their reply was lost on the way."""
        with self._lock:
            held = self._held.copy()
        if execute(self.client(), "LLEN", self._processing) <= held.total():
            return []
        unheld = []
        for body in execute(self.client(), "LRANGE", self._processing, 0, -1):
            digest = _digest(body)
            if held[digest]:
                held[digest] -= 1
            else:
                unheld.append(body)
        return unheld[:limit]

    def _abandoned(self, now: float) -> list[tuple[str, float]]:
        """Workers whose process has ended, or which were not seen for ``claim_idle``, and when they were seen."""
        silent = now - self._options.claim_idle.total_seconds()
        seen = [(as_text(name), float(at)) for name, at in self.client().hgetall(self._workers).items()]
        return [(name, at) for name, at in seen if name != process_name() and (is_gone(name) or at < silent)]

    def _beat(self) -> None:
        execute(self.client(), "HSET", self._workers, process_name(), f"{self._now():.3f}")

    def _now(self) -> float:
        seconds, microseconds = self.client().time()
        return float(seconds) + float(microseconds) / 1e6

    def _deliveries(self, bodies: Sequence[bytes], limit_bytes: int) -> list[Delivery]:
        if not bodies:
            return []
        identity = self.identity()
        digests = [_digest(body) for body in bodies]
        tries: Sequence[Any] = [None] * len(bodies)
        if execute(self.client(), "HLEN", self._tries):
            tries = self.client().hmget(self._tries, digests)
        deliveries = [
            Delivery(body, None, identity, tries=int(counted or 1), handle=digest)
            for body, digest, counted in zip(bodies, digests, tries, strict=True)
        ]
        with self._lock:
            self._held.update(digests)
        self.learn_size(deliveries, limit_bytes)
        return deliveries

    # Acknowledging

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        with translated(f"acknowledge on {self.broker} {self.place}", to_ack_error):
            client = self.client()
            pipeline = client.pipeline(transaction=False)
            for delivery in self._still_there(deliveries):
                # One of them, and from the end where the oldest are: the list is short, and the scan shorter (rq#472).
                pipeline.lrem(self._processing, -1, delivery.body)  # type: ignore[arg-type]
            handles = {delivery.handle for delivery in deliveries}
            suspects = handles & self._counted | {delivery.handle for delivery in deliveries if delivery.tries > 1}
            if suspects:
                pipeline.hdel(self._tries, *suspects)
            self._doubtful = True
            pipeline.execute()
            self._doubtful = False
        self._counted -= suspects
        self._let_go(deliveries)

    def _still_there(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those to be removed: all of them, but for those that an acknowledgement whose answer was lost has removed.

        To remove them once more would take equal messages away that are not stored yet.
        """
        if not self._doubtful:
            return deliveries
        present = Counter(_digest(body) for body in execute(self.client(), "LRANGE", self._processing, 0, -1))
        with self._lock:
            expected = self._held - Counter(delivery.handle for delivery in deliveries)
        surplus = present - expected
        there = []
        for delivery in deliveries:
            if surplus[delivery.handle] > 0:
                surplus[delivery.handle] -= 1
                there.append(delivery)
        return there

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        with translated(f"keep on {self.broker} {self.place}"):
            self._beat()

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        with translated(f"give back to {self.broker} {self.place}"):
            bodies = [delivery.body for delivery in deliveries]
            try:
                execute(self.client(), "EVAL", _GIVE_BACK, 2, self._processing, self._options.list, *bodies)
            except redis.ResponseError as error:
                if not isinstance(error, redis.exceptions.NoPermissionError) and "ACL failure" not in str(error):
                    raise
                self._give_back_without_script(bodies)
        self._let_go(deliveries)

    def _give_back_without_script(self, bodies: Sequence[bytes]) -> None:
        client = self.client()
        for body in bodies:
            pipeline = client.pipeline(transaction=True)
            execute(pipeline, "RPUSH", self._options.list, body)
            execute(pipeline, "LREM", self._processing, -1, body)
            _, removed = pipeline.execute()
            if not removed:
                # Another has taken it over: the copy just made is one too many.
                execute(client, "LREM", self._options.list, -1, body)

    def count_tries(self, deliveries: Sequence[Delivery], tries: int) -> None:
        handles = [delivery.handle for delivery in deliveries]
        with translated(f"count a try on {self.broker} {self.place}"):
            self._counted.update(handles)
            if tries > 1:
                self.client().hset(self._tries, mapping=dict.fromkeys(handles, tries))
            else:
                self.client().hdel(self._tries, *handles)

    def _let_go(self, deliveries: Iterable[Delivery]) -> None:
        with self._lock:
            self._held -= Counter(delivery.handle for delivery in deliveries)

    # The rest of the interface

    def free_dead(self) -> Freed:
        deliveries = consumers = 0
        with translated(f"free what dead workers hold on {self.broker} {self.place}"):
            now = self._now()
            for name, seen in self._abandoned(now):
                moved = self._give_back_all_of(name)
                deliveries += moved
                if not moved and now - seen > FORGET_AFTER:
                    consumers += execute(self.client(), "HDEL", self._workers, name)
        return Freed(deliveries, consumers)

    def _give_back_all_of(self, worker: str) -> int:
        """Moves what that worker held to where readers take from; the newest first, so that the oldest is next."""
        source, client = self._processing_prefix + worker, self.client()
        pipeline = client.pipeline(transaction=False)
        for _ in range(min(execute(client, "LLEN", source), FREED_AT_ONCE)):
            execute(pipeline, "LMOVE", source, self._options.list, "LEFT", "RIGHT")
        return sum(body is not None for body in pipeline.execute())

    def lag(self) -> Lag:
        with translated(f"lag of {self.broker} {self.place}"):
            return self._lag(self.client())

    def _lag(self, client: redis.Redis) -> Lag:
        unread = execute(client, "LLEN", self._options.list)
        workers = [as_text(name) for name in client.hkeys(self._workers)]
        pending = [execute(client, "LLEN", self._processing_prefix + name) for name in workers]
        return Lag(unread=unread, pending=sum(pending))

    def inspect_source(self, client: redis.Redis, subject: str) -> Iterator[Finding]:
        source = self._options.list
        # First: what waits cannot be looked at without them.
        keys = [f"~{source}", f"~{self._workers.removesuffix('workers')}*"]
        yield from inspect_rights(client, self._url, subject, denied_when_queued(self._url, self._needed()), keys)
        try:
            lag = self._lag(client)
            yield Finding("list", subject, "ok", f"unread {lag.unread}, pending {lag.pending}")
        except redis.exceptions.NoPermissionError:
            yield not_looked_at("list", subject, source, "+llen +hkeys")
        except redis.ResponseError:
            yield Finding(
                "key_type", subject, "error", f"the key {source} is not a list",
                "rename that key or name another list: somebody else uses this one",
            )  # fmt: skip

    def _needed(self) -> list[Sequence[str]]:
        """Each command that reading needs."""
        source, processing = self._options.list, self._processing
        return [
            ("BLMOVE", source, processing, "RIGHT", "LEFT", "0.01"),
            ("LMOVE", source, processing, "RIGHT", "LEFT"),
            ("LREM", processing, "-1", ""),
            ("RPUSH", source, ""),
            ("LLEN", source),
            ("LRANGE", processing, "0", "-1"),
            ("HSET", self._workers, "", ""),
            ("HGETALL", self._workers),
            ("HMGET", self._tries, ""),
            ("HLEN", self._tries),
            ("HKEYS", self._workers),
            ("HDEL", self._tries, ""),
            ("TIME",),
        ]

    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        refuse_all_but_bodies(messages, "list")
        self.in_one_step([("LPUSH", self._options.list, *(message.body for message in messages))])
        return [_digest(message.body) for message in messages]


def _digest(body: bytes) -> str:
    return sha256(body).hexdigest()


def _hash_tag(key: str) -> str | None:
    """What a cluster hashes in place of the whole key, if anything (Redis Cluster specification, hash tags)."""
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else None
