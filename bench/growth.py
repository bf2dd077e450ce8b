"""Subject 4: what grows. Rows already there, adapters in one process, and what a killed worker left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psycopg
from psycopg import sql

from switchboard.ledger import Ledger, claim_todos, complete_todos, migrate

from . import messages
from .ingest import CONTESTANTS, OURS, reading
from .measurement import BenchFailed, Figure, Measurement, Place
from .processes import ROOT, python_module
from .progress import rate, watch
from .servers import Servers

#: Rounds in which the sizes take turns: no more, as each takes minutes to fill.
_ROUNDS = 3

#: Todos claimed and completed in one transaction.
_CLAIM = 100

#: Rows beyond their age that prune finds.
_EXPIRED = 20_000

# A month of ended work: events of some 300 bytes, and their todos.
_FILL_EVENTS = """
INSERT INTO events (source, family, event_type, external_id, trust_mode, verify_detail, payload, payload_size,
                    received_at)
SELECT 'bench', 'queue', 'deploy.finished', format('redis:bench:%%s:%%s', %(mark)s::text, n), 'queue',
       'redis acl: default',
       convert_to(rpad(format('{"event": "deploy.finished", "number": %%s, "note": "', n), 298, '.') || '"}', 'UTF8'),
       300, now() - (%(oldest)s + %(days)s * (1 - n::float / %(rows)s)) * interval '1 day'
FROM generate_series(1, %(rows)s) AS n
"""
_FILL_TODOS = """
INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key, state, attempt, created_at,
                   updated_at, claimed_at, completed_at)
SELECT 'bench', 'bench', event_type, event_type, convert_from(payload, 'UTF8')::jsonb, id, external_id, 'done', 1,
       received_at, received_at, received_at, received_at
FROM events WHERE external_id LIKE format('redis:bench:%%s:%%%%', %(mark)s::text) ORDER BY id
"""


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """All but the adapters take minutes in a full run, and are done once in it; a quick one leaves two adapters out."""
    yield Measurement("growth", "rows already there", _rows, once=True)
    for count in (1, 4) if quick else (1, 2, 4):
        yield Measurement("growth", f"{count} adapter{'s' * (count > 1)}", partial(_adapters, count=count))
    yield Measurement("growth", "un-acknowledged entries of a killed worker", _recovery, once=True)


def _rows(place: Place) -> Iterator[Figure]:
    grown = {rows: _grown(place, rows) for rows in place.scale.rows}
    try:
        for _ in range(1 if place.scale.quick else _ROUNDS):
            for rows, there in grown.items():
                yield Figure(f"growth / ingest, {rows:,} rows", _ingest(there), "/s")
                yield Figure(f"growth / claim, {rows:,} rows", _claim(there), "/s")
        for rows, there in grown.items():
            yield Figure(f"growth / prune, {rows:,} rows", _prune(there), "/s")
    finally:
        with place.servers.connect() as connection:
            for rows in grown:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(f"grown_{rows}")))


def _grown(place: Place, rows: int) -> Place:
    """A database of its own with that many events and todos."""
    with place.servers.connect() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"grown_{rows}")))
    url = place.servers.database_url.replace("/postgres?", f"/grown_{rows}?")
    there = replace(place, servers=replace(place.servers, database_url=url))
    ledger = Ledger(url)
    migrate(ledger)
    ledger.close()
    with there.servers.connect() as connection:
        # The cap is not what is measured.
        connection.execute("UPDATE settings SET value = '1000000000' WHERE key = 'retention_max_rows'")
        _fill(connection, "filled", rows, oldest=0, days=28)
        connection.execute("VACUUM ANALYZE")
    there.servers.checkpoint()
    return there


def _fill(connection: psycopg.Connection, mark: str, rows: int, *, oldest: float, days: float) -> None:
    if rows:
        values = {"mark": mark, "rows": rows, "oldest": oldest, "days": days}
        connection.execute(_FILL_EVENTS, values)
        connection.execute(_FILL_TODOS, values)


def _ingest(place: Place) -> float:
    total = place.messages(CONTESTANTS[OURS].pace)
    before = _events(place.servers)
    with place.servers.client() as client:
        client.flushall()
        messages.publish(place.servers, (messages.body(n, 300) for n in range(total)))
        place.servers.checkpoint()
        with reading(place, CONTESTANTS[OURS]) as crew:
            found = rate(watch(crew, partial(messages.acknowledged, client), total), total)
    if _events(place.servers) - before != total:
        raise BenchFailed(f"{total:,} messages, {_events(place.servers) - before:,} events")
    return found


def _events(servers: Servers) -> int:
    return servers.ask("SELECT count(*) FROM events")[0]


def _claim(place: Place) -> float:
    """Todos claimed and completed a second: what the last ingest has left pending."""
    ledger = Ledger(place.servers.database_url)
    done, began = 0, time.monotonic()
    while True:
        with ledger.transaction() as transaction:
            claimed = claim_todos(transaction.connection, "bench", worker="bench", limit=_CLAIM)
            if claimed:
                complete_todos(transaction.connection, [(todo.id, todo.owner or "", None) for todo in claimed])
        if not claimed:
            break
        done += len(claimed)
    took = time.monotonic() - began
    ledger.close()
    return done / took


def _prune(place: Place) -> float:
    """Rows deleted a second by `switchboard prune`, its start included."""
    with place.servers.connect() as connection:
        _fill(connection, "expired", _EXPIRED, oldest=40, days=1)
        connection.execute("VACUUM ANALYZE")
    before = _events(place.servers)
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "switchboard.cli", "prune"],
        env={"DATABASE_URL": place.servers.database_url, "PYTHONPATH": str(ROOT)},
        cwd=place.folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    took = time.monotonic() - began
    pruned = before - _events(place.servers)
    if pruned != _EXPIRED:
        raise BenchFailed(f"{_EXPIRED:,} events beyond their age, {pruned:,} pruned")
    return pruned / took


def _adapters(place: Place, *, count: int) -> Iterator[Figure]:
    names = [f"bench{number}" for number in range(count)]
    each = place.messages(CONTESTANTS[OURS].pace) // count
    place.servers.begin_anew()
    for name in names:
        messages.publish(place.servers, (messages.body(n, 300) for n in range(each)), name=name)
    with reading(place, CONTESTANTS[OURS], adapters=names) as crew, place.servers.client() as client:
        samples = watch(crew, lambda: sum(messages.acknowledged(client, name) for name in names), each * count)
    yield Figure(f"growth / {count} adapter{'s' * (count > 1)}", rate(samples, each * count), "/s")


def _recovery(place: Place) -> Iterator[Figure]:
    total = place.scale.unacknowledged
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.body(n, 300) for n in range(total)))
    killed = subprocess.run(
        python_module("abandon", place.servers.redis_url, str(total)), env={"PYTHONPATH": str(ROOT)}, check=False
    )
    if killed.returncode != -9:
        raise BenchFailed(f"the worker that was to be killed ended with {killed.returncode}")
    with place.servers.client() as client:
        pending = client.xpending(messages.NAME, messages.GROUP)["pending"]
        if pending != total:
            raise BenchFailed(f"{pending:,} entries un-acknowledged, expected {total:,}")
        began = time.monotonic()
        with reading(place, CONTESTANTS[OURS]) as crew:
            watch(crew, partial(messages.acknowledged, client), total)
            yield Figure(f"growth / {total:,} un-acknowledged entries, start to end", time.monotonic() - began, "s")
