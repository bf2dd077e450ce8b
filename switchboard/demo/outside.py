"""Both ends seen from outside: what is on the streams, and what the ledger's tables hold."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import psycopg
import redis

from ..pull.redis_client import as_text, connect
from .failure import DemoFailed
from .traffic import LINES, Message

#: The consumer group the adapters read with.
GROUP = "switchboard"

#: The entry field that holds the body.
BODY = "body"

#: How long a server may take to answer.
_PATIENCE = timedelta(seconds=20)

# The id in the body ties a todo to its message, and not only to its key.
_TODOS = "SELECT idempotency_key, payload->>'id', count(*) FROM todos GROUP BY 1, 2"

#: What becomes a todo: the idempotency key that the entry's id gives, and the sender's own id in the body.
Identity = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Look:
    """How far it is: todos stored, entries delivered and not acknowledged, entries not yet delivered."""

    stored: int
    pending: int
    unread: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The two sets compared."""

    todos: int
    #: Todos more than one a message.
    duplicates: int
    #: Keys of messages without their todo.
    lost: list[str]
    #: Keys of todos that are nobody's: no such message, or another one's body.
    strangers: list[str]
    pending: int
    dead_letters: int


class Outside:
    """Connections of its own to Valkey and PostgreSQL; closed when the block ends.

    Every method raises ``DemoFailed`` where a server does not answer.
    """

    def __init__(self, redis_url: str, database_url: str) -> None:
        self._streams = connect(redis_url, timeout=_PATIENCE)
        with _answered():
            patience = int(_PATIENCE.total_seconds())
            self._ledger = psycopg.connect(database_url, autocommit=True, connect_timeout=patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.close()
        self._ledger.close()

    def publish(self, messages: Iterable[Message]) -> list[Identity]:
        """Puts them on their streams in one round trip; who they are, once the server has them."""
        pipeline = self._streams.pipeline(transaction=False)
        sent = []
        for message in messages:
            pipeline.xadd(message.line, {"event_type": message.event, BODY: message.body})
            sent.append(message)
        with _answered():
            entry_ids = pipeline.execute()
        return [
            (f"redis:{message.line}:{as_text(entry_id)}", message.id)
            for message, entry_id in zip(sent, entry_ids, strict=True)
        ]

    def look(self) -> Look:
        """How far it is now."""
        pending = unread = 0
        with _answered():
            for line in LINES:
                # Until a worker has made the group there is nothing to see.
                with contextlib.suppress(redis.ResponseError):
                    for group in self._streams.xinfo_groups(line):
                        pending += group["pending"]
                        unread += group["lag"] or 0
            return Look(self._count("todos"), pending, unread)

    def holdings(self) -> Counter[int]:
        """Entries delivered and not acknowledged, by the pid in their consumer's name."""
        held: Counter[int] = Counter()
        with _answered():
            for line in LINES:
                with contextlib.suppress(redis.ResponseError):
                    for consumer in self._streams.xpending(line, GROUP)["consumers"]:
                        held[_pid(as_text(consumer["name"]))] += consumer["pending"]
        return held

    def audit(self, published: Sequence[Identity]) -> Audit:
        """Whether every message became exactly one todo."""
        with _answered():
            found = {(key, sender_id): number for key, sender_id, number in self._ledger.execute(_TODOS)}
            dead_letters = self._count("dead_letters")
        wanted = set(published)
        return Audit(
            todos=sum(found.values()),
            duplicates=sum(number - 1 for identity, number in found.items() if identity in wanted),
            lost=sorted(key for key, _ in wanted - found.keys()),
            strangers=sorted(str(key) for key, _ in found.keys() - wanted),
            pending=self.holdings().total(),
            dead_letters=dead_letters,
        )

    def _count(self, table: str) -> int:
        row = self._ledger.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()  # noqa: S608 - our own names
        return int(row[0]) if row else 0


def _pid(consumer: str) -> int:
    """Consumers are named ``host/namespace/pid/start`` (``process_name``); 0 for any other."""
    parts = consumer.split("/")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdecimal() else 0


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, psycopg.Error, OSError) as error:
        raise DemoFailed(f"a server gave no answer: {error}") from error
