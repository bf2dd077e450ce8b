"""What autovacuum settings do for the tables that turn over, and what a forgotten transaction costs.

One database a setting, all in one PostgreSQL 18 with its default durability, each with the same backlog: pending todos,
and ended ones that retention has not removed yet. One client goes round them: the same batch is stored, claimed, kept
alive and completed in each before the next one, so that what else the machine does falls on all alike. Then the same
with a transaction that was left open, and what VACUUM and REINDEX bring once it has ended.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard.embedded import PostgresServer
from switchboard.ledger import Keyed, Ledger, claim_rows, complete_todos, extend_leases, insert_batch, migrate
from switchboard.model import Delivery, Route, Shape

PENDING, ENDED, EVENTS = 100_000, 1_000_000, 500_000

#: Todos of a round, of a claim that only makes it turn over, and of one that is measured.
ROUND, BULK, CLAIM = 2_000, 500, 20

#: Times one look is taken: the quickest is the one that nothing else disturbed.
LOOKS = 5

#: The launcher looks six times as often as by default, so that a minute stands for six; each vacuum is logged.
SERVER = {"autovacuum_naptime": "10s", "log_autovacuum_min_duration": "0"}

_ROUTE = Route(adapter="bench", queue="bench", key_prefix="redis:bench")


def _fixed(threshold: int, delay: int = 1) -> str:
    return (
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_insert_scale_factor = 0, "
        f"autovacuum_vacuum_threshold = {threshold}, autovacuum_vacuum_insert_threshold = {threshold}, "
        f"autovacuum_vacuum_cost_delay = {delay}"
    )


#: What each database's ``todos`` are set to, and its ``events``.
SETTINGS = {
    "none at all": ("autovacuum_enabled = off", "autovacuum_enabled = off"),
    "PostgreSQL's defaults": ("fillfactor = 100", ""),
    "0.02, delay 1 ms": (
        "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1",
        "autovacuum_vacuum_insert_scale_factor = 0.02",
    ),
    "1,000, delay 1 ms": (_fixed(1_000), _fixed(1_000)),
    "10,000, delay 0": (_fixed(10_000, 0), _fixed(10_000)),
    "10,000, delay 1 ms": (_fixed(10_000), _fixed(10_000)),
    "10,000, delay 2 ms": (_fixed(10_000, 2), _fixed(10_000)),
    "10,000, fillfactor 100": (_fixed(10_000) + ", fillfactor = 100", _fixed(10_000)),
    "50,000, delay 1 ms": (_fixed(50_000), _fixed(50_000)),
}

_FILL = """
INSERT INTO todos (queue, source, kind, title, payload, idempotency_key, state, owner, attempt, created_at,
                   claimed_at, completed_at)
SELECT 'bench', 'bench', '', 'deploy finished', '{{"event": "deploy.finished", "number": 1}}', 'old:' || n,
       {state}, {owner}, 1, now() - interval '1 day' + n / 500 * interval '10 ms', now(), {ended}
FROM generate_series(1, %s) AS n
"""
_FILL_EVENTS = """
INSERT INTO events (source, family, event_type, external_id, trust_mode, payload, payload_size)
SELECT 'bench', 'queue', 'deploy.finished', 'old:' || n, 'queue', '{"event": "deploy.finished", "number": 1}', 41
FROM generate_series(1, %s) AS n
"""

_FILL_ONE_BY_ONE = """
INSERT INTO todos (queue, title, created_at)
SELECT 'bench', 'deploy finished', now() - interval '1 day' + n * interval '1 ms' FROM generate_series(1, %s) AS n
"""

# What a claim looks at, without its locks.
_LOOK = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT id FROM todos WHERE queue = 'bench' AND state = 'pending' AND assignee IS NULL ORDER BY created_at LIMIT 20
"""

_STATE = """
SELECT pg_relation_size('idx_todos_pending') / 8192, pg_relation_size('todos') / 1000000, n_dead_tup,
       n_tup_hot_upd,
       (SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'events')
FROM pg_stat_user_tables WHERE relname = 'todos'
"""


@dataclass
class Variant:
    """One database, and what was seen in it."""

    name: str
    url: str
    ledger: Ledger
    claims: list[float] = field(default_factory=list)
    looks: list[tuple[float, int]] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    busy: float = 0.0
    done: int = 0
    kept_alive: int = 0

    def round(self, number: int) -> None:
        """A batch is stored; as many are claimed and completed, and the first of them kept alive once."""
        began = time.perf_counter()
        for first in range(number, number + ROUND, BULK):
            rows = [_keyed(n) for n in range(first, first + BULK)]
            with self.ledger.transaction() as transaction:
                insert_batch(transaction.connection, _ROUTE, rows, [b"{}"] * BULK)
        for limit in [BULK] * (ROUND // BULK - 1) + [CLAIM] * (BULK // CLAIM):
            asked = time.perf_counter()
            with self.ledger.transaction() as transaction:
                claimed = claim_rows(transaction.connection, "bench", worker="bench", limit=limit)
            if limit == CLAIM:
                self.claims.append(time.perf_counter() - asked)
            held = [(row[0], row[10]) for row in claimed]
            if limit == CLAIM:
                with self.ledger.transaction() as transaction:
                    self.kept_alive += len(extend_leases(transaction.connection, held))
            with self.ledger.transaction() as transaction:
                self.done += len(complete_todos(transaction.connection, [(*one, None) for one in held]))
        self.busy += time.perf_counter() - began

    def look(self) -> None:
        """Notes the milliseconds that a claim's look takes now and the pages it reads, and the table's dead rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            looks: list[tuple[float, int]] = []
            for _ in range(LOOKS):
                row = connection.execute(_LOOK.encode()).fetchone()
                assert row is not None
                plan = row[0][0]["Plan"]
                read = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                looks.append((plan["Actual Total Time"], read))
            self.looks.append(min(looks))
        self.dead.append(self.state()[2])

    def state(self) -> tuple[int, ...]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(_STATE.encode()).fetchone()
        assert row is not None
        return row


def _keyed(number: int) -> Keyed:
    key = f"redis:bench:{number:013d}-0"
    body = json.dumps({"event": "deploy.finished", "number": number, "log": "." * 240}).encode()
    return Keyed(key, Delivery(body, f"{number:013d}-0", ""), Shape(title="deploy finished"))


def vacuums(log: Path) -> dict[str, tuple[int, float]]:
    """How often each database's ``todos`` were vacuumed, and the CPU seconds of it, by the server's log."""
    found: dict[str, tuple[int, float]] = {}
    for entry in log.read_text(encoding="utf-8", errors="replace").split("automatic ")[1:]:
        about = re.match(r'(?:aggressive )?vacuum of table "(\w+)\.public\.todos"', entry)
        spent = re.search(r"CPU: user: ([\d.]+) s, system: ([\d.]+) s", entry)
        if about and spent:
            times, seconds = found.get(about.group(1), (0, 0.0))
            found[about.group(1)] = times + 1, seconds + float(spent.group(1)) + float(spent.group(2))
    return found


def fill(url: str) -> None:
    ledger = Ledger(url)
    migrate(ledger)
    ledger.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"SET synchronous_commit = off")
        connection.execute(_FILL.format(state="'done'", owner="'old'", ended="now()").encode(), (ENDED,))
        connection.execute(_FILL.format(state="'pending'", owner="NULL", ended="NULL").encode(), (PENDING,))
        connection.execute(_FILL_EVENTS.encode(), (EVENTS,))
        connection.execute(b"VACUUM FREEZE ANALYZE")


@contextmanager
def databases(server: PostgresServer) -> Iterator[list[Variant]]:
    """A copy of the filled database for each setting."""
    variants = []
    for number, (name, (todos, events)) in enumerate(SETTINGS.items()):
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE bench_{number} TEMPLATE filled STRATEGY file_copy".encode())
        url = make_conninfo(server.url, dbname=f"bench_{number}")
        with psycopg.connect(url, autocommit=True) as connection:
            # The migrations' own settings, whatever they are, are none of these.
            for table in ("todos", "events", "pending_acks"):
                options = connection.execute(
                    b"SELECT split_part(unnest(reloptions), '=', 1) FROM pg_class WHERE relname = %s", (table,)
                ).fetchall()
                for (option,) in options:
                    if option != "fillfactor":
                        connection.execute(
                            sql.SQL("ALTER TABLE {} RESET ({})").format(sql.Identifier(table), sql.SQL(option))
                        )
            connection.execute(f"ALTER TABLE todos SET ({todos})".encode())
            if events:
                connection.execute(f"ALTER TABLE events SET ({events})".encode())
            if "fillfactor" in todos:
                connection.execute(b"VACUUM (FULL) todos")
                connection.execute(b"VACUUM (FREEZE, ANALYZE) todos")
        variants.append(Variant(name, url, Ledger(url)))
    try:
        yield variants
    finally:
        for variant in variants:
            variant.ledger.close()


def compare(server: PostgresServer, log: Path, seconds: float) -> None:
    """All settings, round by round."""
    with databases(server) as variants:
        before = [variant.state() for variant in variants]
        began = looked = time.monotonic()
        number = 0
        while time.monotonic() < began + seconds:
            # Each is the first one as often as any other.
            turn = number // ROUND % len(variants)
            for variant in variants[turn:] + variants[:turn]:
                variant.round(number)
            number += ROUND
            if time.monotonic() > looked + 2:
                looked = time.monotonic()
                for variant in variants:
                    variant.look()
        took = time.monotonic() - began
        vacuumed = vacuums(log)
        print(f"{number:,} todos in {took:.0f} s through each, {number * 60 / took:,.0f} a minute")
        print(
            f"{'todos':<24}{'claim':>9}{'p99':>7}{'its look':>11}{'most':>7}{'pages':>8}{'most':>7}{'dead most':>11}"
            f"{'index pages':>13}{'table MB':>10}{'HOT %':>7}{'vacuums':>9}{'CPU s':>7}{'todos/s':>9}{'events':>8}"
        )
        for position, (variant, was) in enumerate(zip(variants, before, strict=True)):
            pages, size, _, hot, events = variant.state()
            times_vacuumed, cpu = vacuumed.get(f"bench_{position}", (0, 0.0))
            cuts = statistics.quantiles(variant.claims, n=100)
            times, reads = zip(*variant.looks, strict=True)
            print(
                f"{variant.name:<24}{cuts[49] * 1000:>6.1f} ms{cuts[98] * 1000:>7.1f}"
                f"{statistics.median(times):>8.2f} ms{max(times):>7.2f}"
                f"{statistics.median(reads):>8.0f}{max(reads):>7}{max(variant.dead):>11,}"
                f"{f'{was[0]} to {pages}':>13}{f'+{size - was[1]}':>10}"
                f"{(hot - was[3]) * 100 / variant.kept_alive:>7.0f}{times_vacuumed:>9}"
                f"{cpu:>7.1f}{variant.done / variant.busy:>9.0f}{events - was[4]:>8}",
                flush=True,
            )


def dead_entries(server: PostgresServer, todos: int) -> None:
    """What a claim's look costs with so many dead entries ahead of it, nothing vacuumed, no two of one moment."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE dead")
    variant = Variant(
        "dead", make_conninfo(server.url, dbname="dead"), Ledger(make_conninfo(server.url, dbname="dead"))
    )
    migrate(variant.ledger)
    with psycopg.connect(variant.url, autocommit=True) as connection:
        connection.execute(b"ALTER TABLE todos SET (autovacuum_enabled = off)")
        connection.execute(_FILL_ONE_BY_ONE.encode(), (todos + 1_000,))
        for count in range(0, todos + 1, todos // 8):
            while variant.done < count:
                with variant.ledger.transaction() as transaction:
                    claimed = claim_rows(transaction.connection, "bench", worker="bench", limit=2_500)
                    held = [(row[0], row[10], None) for row in claimed]
                    variant.done += len(complete_todos(transaction.connection, held))
            # Without it the planner soon believes that few are pending, and reads the table.
            connection.execute(b"ANALYZE todos")
            variant.look()
            took, read = variant.looks[-1]
            print(f"{variant.done:,} dead entries: its look {took:.2f} ms, {read:,} pages", flush=True)
        for what in (b"VACUUM todos", b"REINDEX INDEX CONCURRENTLY idx_todos_pending"):
            before = variant.state()[0]
            connection.execute(what)
            variant.look()
            took, read = variant.looks[-1]
            now = variant.state()[0]
            print(
                f"after {what.decode()}: {took:.2f} ms, {read:,} pages; index {before:,} to {now:,} pages", flush=True
            )
    variant.ledger.close()


def left_open(server: PostgresServer, seconds: float) -> None:
    """Churn with a snapshot that somebody holds, then what each remedy brings."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE held TEMPLATE filled STRATEGY file_copy")
    url = make_conninfo(server.url, dbname="held")
    variant = Variant("held", url, Ledger(url))
    number = 0

    def churn(what: str, lasting: float) -> None:
        nonlocal number
        variant.claims.clear()
        began = time.monotonic()
        while time.monotonic() < began + lasting:
            variant.round(number)
            number += ROUND
        variant.look()
        cuts = statistics.quantiles(variant.claims, n=100)
        pages, size, dead, *_ = variant.state()
        took, read = variant.looks[-1]
        print(
            f"{what:<40} claim {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f}; its look {took:.2f} ms, "
            f"{read:,} pages; index {pages:,} pages, {dead:,} dead rows, table {size:,} MB; {number:,} todos",
            flush=True,
        )

    with psycopg.connect(url, autocommit=True) as connection:
        churn("at first", 15)
        with psycopg.connect(url) as other:
            other.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute(b"SELECT 1")
            part = seconds / 6
            for count in range(6):
                churn(f"a transaction open for {(count + 1) * part:.0f} s", part)
            connection.execute(b"SET statement_timeout = '10s'")
            began = time.monotonic()
            try:
                connection.execute(b"REINDEX INDEX CONCURRENTLY idx_todos_pending")
                print(f"REINDEX ended in {time.monotonic() - began:.1f} s beside it")
            except psycopg.errors.QueryCanceled:
                print("REINDEX CONCURRENTLY waits for it: cancelled after 10 s")
            connection.execute(b"SET statement_timeout = 0; ALTER TABLE todos SET (autovacuum_enabled = off)")
        # What a cancelled REINDEX leaves behind is written to by every insert, or only in the way.
        for name, ready in connection.execute(
            b"SELECT indexrelid::regclass::text, indisready FROM pg_index WHERE NOT indisvalid"
        ).fetchall():
            print(f"left behind: {name}, {'written to' if ready else 'not written to'}")
            connection.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(sql.Identifier(name)))
        churn("it has ended, not cleaned up yet", 10)
        began = time.monotonic()
        connection.execute(b"VACUUM todos")
        churn(f"after VACUUM ({time.monotonic() - began:.1f} s)", 10)
        began = time.monotonic()
        connection.execute(b"REINDEX INDEX CONCURRENTLY idx_todos_pending")
        churn(f"after REINDEX ({time.monotonic() - began:.1f} s)", 10)
        row = connection.execute(
            b"SELECT pg_relation_size('idx_todos_pending')::float / count(*) FROM todos WHERE state = 'pending'"
        ).fetchone()
        print(f"bytes of the index a pending todo: {row[0] if row else 0:.1f}")
    variant.ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480, help="of churn for the settings")
    parser.add_argument("--open", type=float, default=300, help="seconds that the transaction is left open")
    parser.add_argument("--dead", type=int, default=400_000, help="dead entries that a claim has to pass")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="switchboard-bench-") as name,
        PostgresServer(Path(name) / "postgres", settings=SERVER) as server,
    ):
        if options.dead:
            dead_entries(server, options.dead)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE filled")
        if options.seconds or options.open:
            fill(make_conninfo(server.url, dbname="filled"))
        if options.seconds:
            compare(server, Path(name) / "postgres" / "server.log", options.seconds)
        if options.open:
            left_open(server, options.open)


if __name__ == "__main__":
    main()
