"""The count from outside: what was published against what PostgreSQL and Valkey have, by their own words.

What the published messages are:

- a stream with `key`: the ids that the producer put into the bodies. One it sent twice, as an answer was lost, is one
  message all the same;
- a stream without: the entries that the server has (XRANGE). One sent twice is two entries, and two messages;
- a list: the bodies, each with its own id. Equal bodies are one message while its todo lives, and nobody ends these.

For each of them the producer's own record is held against the server's, so that a message the server lost does not pass
for one that was never sent.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import redis

from soak.lines import Fate, LineSpec, Message, Producer
from switchboard.pull.redis_client import as_text

#: The consumer group the adapters read with.
GROUP = "switchboard"

#: Why each kind of message that must not become a todo is dead-lettered.
REASONS: Mapping[Fate, str] = {"invalid": "invalid", "refused": "poison"}

#: Keys shown of each kind of wrong.
SHOWN = 5


@dataclass
class Account:
    """One line's messages and what became of them; each list of keys must be empty."""

    line: str
    published: int = 0
    #: Sent more than once, as an answer was lost.
    repeated: int = 0
    todos: int = 0
    #: By reason.
    dead_letters: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    unread: int = 0
    #: Neither a todo nor a dead letter.
    lost: list[str] = field(default_factory=list)
    #: More than one todo, event or dead letter, or both a todo and a dead letter.
    twice: list[str] = field(default_factory=list)
    #: A todo or dead letter of no message.
    strangers: list[str] = field(default_factory=list)
    #: A good message that was dead-lettered, or a bad one that was not, or for another reason.
    misjudged: list[str] = field(default_factory=list)
    #: A todo that does not carry its message's id, or a message the source itself does not have.
    other: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Everything that must not be, in words."""
        kinds = {
            "lost": self.lost,
            "twice": self.twice,
            "nobody's": self.strangers,
            "misjudged": self.misjudged,
            "odd": self.other,
        }
        found = [
            f"{self.line}: {len(keys)} {kind}: {', '.join(keys[:SHOWN])}{' …' if len(keys) > SHOWN else ''}"
            for kind, keys in kinds.items()
            if keys
        ]
        waits = [(self.pending, "pending"), (self.unread, "unread")]
        return found + [f"{self.line}: {number} {what}" for number, what in waits if number]


class Outside:
    """Looks at the two servers with clients of its own, past every proxy."""

    def __init__(self, redis_url: str, database_url: str) -> None:
        self._redis_url = redis_url
        self._database_url = database_url

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        options = "-c statement_timeout=20s"
        with psycopg.connect(self._database_url, autocommit=True, options=options, connect_timeout=5) as connection:
            return connection.execute(query.encode(), values or None).fetchall()

    def waiting(self, line: LineSpec) -> tuple[int, int]:
        """Taken and not acknowledged, and not taken yet."""
        with redis.Redis.from_url(self._redis_url, socket_timeout=10) as source:
            if line.kind == "redis-list":
                held = source.scan_iter(f"{{{line.name}}}:{GROUP}:processing:*", count=1_000)
                return sum(source.llen(key) for key in held), source.llen(line.name)
            groups = {as_text(group["name"]): group for group in source.xinfo_groups(line.name)}
            # After deletions the server no longer counts what is unread: then the stream's own length says it.
            unread = groups[GROUP]["lag"] if groups[GROUP]["lag"] is not None else source.xlen(line.name)
            return groups[GROUP]["pending"], unread

    def look(self, lines: Sequence[LineSpec]) -> tuple[int, int, int]:
        """How many todos, dead letters, and messages that are not acknowledged or not read."""
        [(todos, letters)] = self.rows("SELECT (SELECT count(*) FROM todos), (SELECT count(*) FROM dead_letters)")
        return todos, letters, sum(sum(self.waiting(line)) for line in lines)

    def quiet(self, lines: Sequence[LineSpec]) -> bool:
        """Whether nothing waits anywhere: not at the source, not for its todo's end, not to be told."""
        [(waiting,)] = self.rows(
            "SELECT (SELECT count(*) FROM pending_acks) + (SELECT count(*) FROM todos WHERE queue = ANY(%s) "
            "AND state IN ('pending', 'claimed'))",
            [line.name for line in lines if line.completes],
        )
        return not waiting and all(self.waiting(line) == (0, 0) for line in lines)

    def account(self, producer: Producer) -> Account:
        """What became of one line's messages, now that nothing moves any more."""
        line = producer.line
        account = Account(line.name, repeated=producer.repeated)
        account.pending, account.unread = self.waiting(line)
        expected = self._expected(line, producer.sent, account)
        account.published = len(expected)
        todos = self.rows("SELECT idempotency_key, payload->>'id' FROM todos WHERE source = %s", line.name)
        letters = self.rows("SELECT idempotency_key, reason FROM dead_letters WHERE adapter = %s", line.name)
        account.todos = len(todos)
        account.dead_letters = dict(Counter(reason for _, reason in letters))
        todo_keys, letter_keys = Counter(key for key, _ in todos), Counter(key for key, _ in letters)
        account.lost = sorted(expected.keys() - todo_keys.keys() - letter_keys.keys())
        account.strangers = sorted((todo_keys.keys() | letter_keys.keys()) - expected.keys())
        account.twice = _more_than_one(todo_keys + letter_keys) + self._events_twice(line)
        for key, reason in [*((key, None) for key in todo_keys), *letters]:
            if key in expected and REASONS.get(expected[key].fate) != reason:
                account.misjudged.append(f"{key} ({expected[key].fate}, is {reason or 'a todo'})")
        account.other += [key for key, told in todos if key in expected and expected[key].id != told]
        return account

    def _expected(self, line: LineSpec, sent: Sequence[Message], account: Account) -> dict[str, Message]:
        """The idempotency keys that there must be, and the message of each."""
        prefix = f"redis:{line.name}:"
        if line.kind == "redis-list":
            return {prefix + message.digest: message for message in sent}
        by_body = {message.body: message for message in sent}
        with redis.Redis.from_url(self._redis_url, socket_timeout=60) as source:
            entries = {as_text(entry_id): by_body.get(fields[b"body"]) for entry_id, fields in source.xrange(line.name)}
        known = {entry_id: message for entry_id, message in entries.items() if message is not None}
        if not line.deletes:
            account.other += [f"{entry_id}, which nobody sent" for entry_id in entries.keys() - known.keys()]
            there = {message.id for message in known.values()}
            account.other += [f"{message.id}, which the source lost" for message in sent if message.id not in there]
        elif entries:
            account.other.append(f"{len(entries)} entries not deleted from the stream")
        if line.keyed:
            return {f"{prefix}key:{message.id}": message for message in sent}
        return {prefix + entry_id: message for entry_id, message in known.items()}

    def _events_twice(self, line: LineSpec) -> list[str]:
        """A message has one event; only one of its ids or its bytes may tell it from others."""
        query = (
            "SELECT coalesce(external_id, encode(sha256(payload), 'hex')) FROM events WHERE source = %s "
            "GROUP BY 1 HAVING count(*) > 1"
        )
        return [f"event {key}" for (key,) in self.rows(query, line.name)]


def _more_than_one(counted: Counter[str]) -> list[str]:
    return sorted(key for key, number in counted.items() if number > 1)


def total(accounts: Iterable[Account]) -> Account:
    """All lines together: the numbers alone."""
    everything = Account("all")
    for account in accounts:
        everything.published += account.published
        everything.repeated += account.repeated
        everything.todos += account.todos
        for reason, number in account.dead_letters.items():
            everything.dead_letters[reason] = everything.dead_letters.get(reason, 0) + number
        everything.pending += account.pending
        everything.unread += account.unread
    return everything
