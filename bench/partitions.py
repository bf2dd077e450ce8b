"""What events by month would be worth: one table with its unique index, against partitions with their keys beside them.

Both hold the same five months of events, in two databases of one PostgreSQL 18 with its default durability. Measured in
turns: ingestion through the ledger's own statement, redelivery, the look-up of one event, and retiring a month (time,
WAL, the vacuum that follows), alone and with ingestion going on beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import md5, sha256
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard.embedded import PostgresServer
from switchboard.ledger import Connection, Ledger, intake, migrate
from switchboard.ledger.wire import ByteaArray, JsonbArray, TextArray

MONTHS = 5
BATCH = 500

#: Batches of one variant before it is the other's turn, and turns of each.
TURN, TURNS = 20, 15

#: Rows one statement deletes, as prune does.
STEP = 10_000

#: One event in so many came from a todo that is live: it must stay.
LIVE_EVERY = 1_000

#: Seconds of ingestion before a month is retired beside it.
CALM_SECONDS = 12

_MONTHS = """
DROP TABLE events;
CREATE TABLE events (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    source        text NOT NULL,
    family        text NOT NULL CHECK (family IN ('queue', 'webhook')),
    event_type    text NOT NULL DEFAULT '',
    external_id   text,
    trust_mode    text NOT NULL CHECK (trust_mode IN ('queue', 'signed', 'token', 'open')),
    verified      boolean NOT NULL DEFAULT false,
    verify_detail text NOT NULL DEFAULT '',
    content_type  text NOT NULL DEFAULT '',
    headers       jsonb NOT NULL DEFAULT '{}',
    payload       bytea NOT NULL,
    payload_size  integer NOT NULL,
    source_ip     inet,
    received_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id, received_at)
) PARTITION BY RANGE (received_at);
CREATE INDEX idx_events_source_time ON events (source, received_at DESC);
-- What is kept of a month that is dropped: the events of live todos.
CREATE TABLE events_kept PARTITION OF events DEFAULT;
CREATE TABLE event_keys (
    source      text NOT NULL,
    external_id text NOT NULL,
    event_id    bigint NOT NULL,
    received_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX idx_event_keys_dedupe ON event_keys (source, external_id);
-- Keys come in the order of their time: the cheapest index that finds a month of them.
CREATE INDEX idx_event_keys_time ON event_keys USING brin (received_at);
"""

# As the ledger's own, but for the keys, which decide what is new.
_INSERT = sql.SQL("""
WITH {incoming}, new AS (
    INSERT INTO event_keys (source, external_id, event_id, received_at)
    SELECT %(source)s, key, nextval(pg_get_serial_sequence('events', 'id')), now() FROM incoming ORDER BY n
    ON CONFLICT (source, external_id) DO NOTHING
    RETURNING event_id, external_id
), stored AS (
    INSERT INTO events (id, source, family, event_type, external_id, trust_mode, verified, verify_detail,
                        content_type, headers, payload, payload_size, source_ip)
    OVERRIDING SYSTEM VALUE
    SELECT new.event_id, %(source)s, %(family)s, event_type, key, %(trust_mode)s, %(verified)s, verify_detail,
           content_type, headers, body, octet_length(body), source_ip::inet
    FROM incoming JOIN new ON new.external_id = incoming.key ORDER BY n
    RETURNING id, external_id
), made AS (
    INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key)
    SELECT %(queue)s, %(source)s, kind, title,
           coalesce(incoming.payload, convert_from(body, 'UTF8')::jsonb), stored.id, key
    FROM incoming JOIN stored ON stored.external_id = incoming.key ORDER BY n
    ON CONFLICT (queue, idempotency_key)
        WHERE idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed' DO NOTHING
)
SELECT count(*), {notify} FROM stored
""").format(incoming=intake._INCOMING, notify=intake._NOTIFY)

_COMPARE = sql.SQL("""
SELECT k.external_id, sha256(e.payload) = known.digest
FROM unnest(%(keys)s, %(digests)s) AS known (key, digest)
JOIN event_keys k ON k.source = %(source)s AND k.external_id = known.key
JOIN events e ON e.id = k.event_id AND e.received_at = k.received_at
""")

# External ids in the order of their time, as a stream's, or in none, as a UUID's.
_KEYS = {
    "ordered": "'redis:bench:' || lpad(n::text, 13, '0') || '-0'",
    "random": "'redis:bench:' || md5(lpad(n::text, 13, '0'))",
}

_STORE = """
INSERT INTO events (source, family, event_type, external_id, trust_mode, content_type, payload, payload_size,
                    received_at)
SELECT 'bench', 'queue', 'deploy.finished', {key}, 'queue', 'application/json',
       convert_to(rpad('{{"event": "deploy.finished", "number": ' || n || ', "log": "', 298, '.') || '"}}', 'UTF8'),
       300,
       %(start)s::timestamptz
           + (%(end)s::timestamptz - %(start)s::timestamptz) * (n::float8 / %(rows)s::float8)
FROM generate_series(%(since)s::bigint, %(until)s::bigint) AS n
"""
_STORE_KEYS = """
WITH stored AS ({store} RETURNING id, external_id, received_at)
INSERT INTO event_keys (source, external_id, event_id, received_at)
SELECT 'bench', external_id, id, received_at FROM stored
"""

_LIVE = """
INSERT INTO todos (queue, title, event_id) SELECT 'live', 'live', id FROM events WHERE id %% %s = 0
"""

# A pass looks once at which events it must leave.
_LOOK = """
CREATE TEMP TABLE live ON COMMIT DROP AS
SELECT event_id FROM todos WHERE state IN ('pending', 'claimed') AND event_id IS NOT NULL
"""
_DELETE = """
WITH chunk AS MATERIALIZED (
    SELECT id, received_at FROM events
    WHERE source = 'bench' AND received_at >= %(since)s AND received_at < %(until)s ORDER BY received_at LIMIT %(step)s
), gone AS (
    DELETE FROM events
    WHERE id IN (SELECT id FROM chunk) AND NOT EXISTS (SELECT FROM live WHERE event_id = events.id)
)
SELECT count(*), max(received_at) FROM chunk
"""
_DELETE_KEYS = """
DELETE FROM event_keys AS key
WHERE received_at >= %(since)s AND received_at < %(until)s
  AND NOT EXISTS (SELECT FROM live WHERE event_id = key.event_id)
"""

_SIZES = """
SELECT CASE WHEN relname LIKE 'event_keys%%' OR relname LIKE 'idx_event_keys%%' THEN 'keys: ' ELSE 'events: ' END
       || CASE WHEN relkind = 'r' THEN 'heap'
               WHEN relname ~ 'source_(id|time)|source_received' THEN 'by source and time'
               WHEN relname ~ 'dedupe' THEN 'unique key'
               WHEN relname ~ 'keys_time' THEN 'by time'
               ELSE 'primary key' END AS what,
       sum(pg_relation_size(oid))::bigint
FROM pg_class
WHERE relname ~ '^(idx_)?event' AND relkind IN ('r', 'i') GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True)
class Variant:
    """One of the two ways: its database, and what stores a batch in it."""

    name: str
    url: str
    insert: sql.Composed
    compare: sql.SQL

    def store(self, connection: Connection, numbers: range, keys: str) -> int:
        """One batch as ``insert_batch`` sends it; returns how many were new."""
        rows = sorted((_key(number, keys), _body(number)) for number in numbers)
        texts = TextArray.of(key for key, _ in rows)
        empty = TextArray.of("" for _ in rows)
        row = connection.execute(
            self.insert,
            {
                "keys": texts,
                "bodies": ByteaArray([body for _, body in rows]),
                "payloads": JsonbArray([None] * len(rows)),
                "titles": TextArray.of("deploy finished" for _ in rows),
                "kinds": empty,
                "event_types": TextArray.of("deploy.finished" for _ in rows),
                "content_types": TextArray.of("application/json" for _ in rows),
                "headers": JsonbArray([b"{}"] * len(rows)),
                "verify_details": empty,
                "source_ips": TextArray.of(None for _ in rows),
                "source": "bench",
                "family": "queue",
                "trust_mode": "queue",
                "verified": False,
                "queue": "bench",
                "notify": False,
            },
        ).fetchone()
        new = int(row[0]) if row else 0
        if new < len(rows):
            digests = ByteaArray([sha256(body).digest() for _, body in rows])
            known = connection.execute(self.compare, {"keys": texts, "digests": digests, "source": "bench"}).fetchall()
            assert len(known) == len(rows)
        return new


def _key(number: int, keys: str) -> str:
    digits = f"{number:013d}"
    return f"redis:bench:{digits}-0" if keys == "ordered" else f"redis:bench:{md5(digits.encode()).hexdigest()}"


def _body(number: int) -> bytes:
    event = {"event": "deploy.finished", "repository": "acme/api", "number": number, "log": ""}
    event["log"] = "." * (300 - len(json.dumps(event)))
    return json.dumps(event).encode()


def fill(variant: Variant, rows: int, keys: str) -> list[datetime]:
    """Five months of events, so many rows in all, in the order of their time; returns where each month begins."""
    ledger = Ledger(variant.url)
    migrate(ledger)
    ledger.close()
    with psycopg.connect(variant.url, autocommit=True) as connection:
        bounds = [
            row[0]
            for row in connection.execute(
                b"SELECT date_trunc('month', now()) - make_interval(months => n) FROM generate_series(%s, -1, -1) AS n",
                (MONTHS,),
            )
        ]
        store = _STORE.format(key=_KEYS[keys])
        if variant.name == "by month":
            connection.execute(_MONTHS.encode())
            for number, (start, end) in enumerate(pairwise(bounds)):
                connection.execute(
                    sql.SQL("CREATE TABLE {} PARTITION OF events FOR VALUES FROM ({}) TO ({})").format(
                        sql.Identifier(f"events_{number}"), sql.Literal(start), sql.Literal(end)
                    )
                )
            store = _STORE_KEYS.format(store=store)
        connection.execute(b"SET synchronous_commit = off")
        for since in range(0, rows, 100_000):
            until = min(since + 100_000, rows) - 1
            span = {"start": bounds[0], "end": bounds[MONTHS], "rows": rows, "since": since, "until": until}
            connection.execute(store.encode(), span)
        connection.execute(_LIVE.encode(), (LIVE_EVERY,))
        connection.execute(b"VACUUM ANALYZE")
    return bounds


def ingest(variants: list[Variant], first: int, keys: str) -> None:
    """Batches of new messages, then the same again, in turns."""
    rates: dict[tuple[str, str], list[float]] = {}
    numbers = first
    ledgers = {variant.name: Ledger(variant.url) for variant in variants}
    for turn in range(TURNS):
        for variant in variants if turn % 2 else variants[::-1]:
            for what in ("new", "redelivered"):
                began = time.monotonic()
                for number in range(numbers, numbers + TURN * BATCH, BATCH):
                    with ledgers[variant.name].transaction() as transaction:
                        new = variant.store(transaction.connection, range(number, number + BATCH), keys)
                    assert new == (BATCH if what == "new" else 0)
                rates.setdefault((what, variant.name), []).append(TURN * BATCH / (time.monotonic() - began))
        numbers += TURN * BATCH
    for ledger in ledgers.values():
        with ledger.transaction() as transaction:
            # Nobody works them here, and their events would all have to stay.
            transaction.connection.execute(b"DELETE FROM todos WHERE queue = 'bench'")
        ledger.close()
    one, months = (variant.name for variant in variants)
    for what in ("new", "redelivered"):
        ratios = [b / a for a, b in zip(rates[what, one], rates[what, months], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{what:>12}: {statistics.median(rates[what, one]):>8,.0f}/s in one table, "
            f"{statistics.median(rates[what, months]):>8,.0f}/s by month; "
            f"ratio {middle:.2f} (quartiles {low:.2f} to {high:.2f})",
            flush=True,
        )


def sizes(variants: list[Variant]) -> None:
    for variant in variants:
        with psycopg.connect(variant.url, autocommit=True) as connection:
            found: list[tuple[str, int]] = connection.execute(_SIZES.encode()).fetchall()
        total = sum(size for _, size in found)
        parts = ", ".join(f"{what} {size / 1e6:,.0f}" for what, size in found)
        print(f"{variant.name:>12}: {total / 1e6:,.0f} MB ({parts})", flush=True)


def look_up(variants: list[Variant], rows: int) -> None:
    """The event of a todo: by its id alone, and by its id and time."""
    by_id = b"SELECT * FROM events WHERE id = %s"
    by_time = b"SELECT * FROM events WHERE id = %s AND received_at = %s"
    taken: dict[str, list[float]] = {}
    connections = [psycopg.connect(v.url, autocommit=True, prepare_threshold=None) for v in variants]
    for n in range(1, 1001):
        event_id = n * 7919 % rows + 1
        for variant, connection in zip(variants, connections, strict=True):
            began = time.perf_counter()
            row: Any = connection.execute(by_id, (event_id,)).fetchone()
            taken.setdefault(f"{variant.name}, by id", []).append(time.perf_counter() - began)
            began = time.perf_counter()
            connection.execute(by_time, (event_id, row[-1])).fetchone()
            taken.setdefault(f"{variant.name}, by id and time", []).append(time.perf_counter() - began)
    for connection in connections:
        connection.close()
    print("look-up: " + ", ".join(f"{what} {statistics.median(t) * 1000:.2f} ms" for what, t in taken.items()))


def retire_one_table(connection: psycopg.Connection, _: int, since: datetime, until: datetime) -> None:
    span = {"since": since, "until": until, "step": STEP}
    with connection.transaction():
        connection.execute(_LOOK.encode())
        connection.execute(b"ANALYZE live")
        while row := connection.execute(_DELETE.encode(), span).fetchone():
            span["since"] = row[1]
            if row[0] < STEP:
                break


def retire_month(connection: psycopg.Connection, number: int, since: datetime, until: datetime) -> None:
    # The keys first: the partition's lock, taken at the end, keeps every insert waiting.
    with connection.transaction():
        connection.execute(_LOOK.encode())
        connection.execute(b"ANALYZE live")
        for part in range(100):
            step = (until - since) / 100
            span = {"since": since + part * step, "until": since + (part + 1) * step}
            connection.execute(_DELETE_KEYS.encode(), span)
        month = sql.Identifier(f"events_{number}")
        connection.execute(
            sql.SQL(
                "CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM {} WHERE id IN (SELECT event_id FROM live)"
            ).format(month)
        )
        connection.execute(sql.SQL("DROP TABLE {}").format(month))
        connection.execute(b"INSERT INTO events OVERRIDING SYSTEM VALUE SELECT * FROM kept")


RETIRE: dict[str, tuple[Callable[[psycopg.Connection, int, datetime, datetime], None], bytes]] = {
    "one table": (retire_one_table, b"VACUUM events"),
    "by month": (retire_month, b"VACUUM event_keys"),
}


def _feed(variant: Variant, first: int, keys: str, stop: Event, answer: Pipe) -> None:
    """Ingests until it is told to stop; answers when it has begun, and with each batch's begin and end."""
    ledger = Ledger(variant.url)
    batches: list[tuple[float, float]] = []
    number = first
    while not stop.is_set():
        began = time.monotonic()
        with ledger.transaction() as transaction:
            variant.store(transaction.connection, range(number, number + BATCH), keys)
        if not batches:
            answer.send(None)
        batches.append((began, time.monotonic()))
        number += BATCH
    ledger.close()
    answer.send(batches)


def retire(variant: Variant, number: int, bounds: list[datetime]) -> tuple[float, float]:
    """Retires one month and cleans up after it; returns the second it began and the one it ended."""
    act, vacuum = RETIRE[variant.name]
    with psycopg.connect(variant.url, autocommit=True) as connection:

        def lsn() -> int:
            row = connection.execute(b"SELECT pg_current_wal_lsn() - '0/0'").fetchone()
            return int(row[0]) if row else 0

        times, positions = [time.monotonic()], [lsn()]
        act(connection, number, bounds[number], bounds[number + 1])
        times.append(time.monotonic())
        positions.append(lsn())
        connection.execute(vacuum)
        times.append(time.monotonic())
        positions.append(lsn())
    print(
        f"{variant.name:>12}, month {number + 1}: {times[1] - times[0]:.1f} s and "
        f"{(positions[1] - positions[0]) / 1e6:,.0f} MB of WAL, then vacuum {times[2] - times[1]:.1f} s and "
        f"{(positions[2] - positions[1]) / 1e6:,.0f} MB",
        flush=True,
    )
    return times[0], times[-1]


def retire_beside(variant: Variant, number: int, bounds: list[datetime], first: int, keys: str) -> None:
    """As ``retire``, with ingestion going on; says how much slower that is meanwhile (the WAL is of both)."""
    context = multiprocessing.get_context("spawn")
    stop, (mine, theirs) = context.Event(), context.Pipe()
    feeder = context.Process(target=_feed, args=(variant, first, keys, stop, theirs))
    feeder.start()
    mine.recv()
    time.sleep(CALM_SECONDS)
    began, ended = retire(variant, number, bounds)
    stop.set()
    batches: list[tuple[float, float]] = mine.recv()
    feeder.join()
    calm = [end for start, end in batches if began - CALM_SECONDS < start and end < began]
    before = len(calm) * BATCH / (calm[-1] - calm[0])
    meanwhile = [(start, end) for start, end in batches if end > began and start < ended]
    during = len(meanwhile) * BATCH / (meanwhile[-1][1] - meanwhile[0][0])
    longest = max(end - start for start, end in meanwhile)
    print(
        f"{'':>12}  ingestion {before:,.0f}/s before, {during:,.0f}/s meanwhile ({ended - began:.1f} s; "
        f"ratio {during / before:.2f}), longest batch {longest:.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="events in all five months")
    parser.add_argument("--keys", choices=sorted(_KEYS), default="ordered", help="as a stream's, or random")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="switchboard-bench-") as name,
        PostgresServer(Path(name) / "postgres") as postgres,
    ):
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE months")
        variants = [
            Variant("one table", postgres.url, intake._INSERT, intake._COMPARE),
            Variant("by month", make_conninfo(postgres.url, dbname="months"), _INSERT, _COMPARE),
        ]
        for variant in variants:
            began = time.monotonic()
            bounds = fill(variant, options.rows, options.keys)
            print(f"{variant.name:>12}: {options.rows:,} events filled in {time.monotonic() - began:.0f} s", flush=True)
        sizes(variants)
        ingest(variants, options.rows, options.keys)
        look_up(variants, options.rows)
        fresh = 2 * options.rows
        for number in range(MONTHS - 1):
            for variant in variants if number % 4 < 2 else variants[::-1]:
                if number % 2 == 0:
                    retire(variant, number, bounds)
                else:
                    retire_beside(variant, number, bounds, fresh, options.keys)
                    fresh += options.rows
        sizes(variants)


if __name__ == "__main__":
    main()
