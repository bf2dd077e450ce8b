"""What retention costs beside ingestion: two million events and ended todos, and a worker that goes on storing.

Three passes in one run: those older than 45 of 60 days, those older than 30, and those beyond a cap of 500,000 rows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import psycopg
import redis

from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.ledger import Ledger, migrate, prune, set_setting

#: Seconds of ingestion before each pass, and after the last.
CALM_SECONDS = 20

#: Messages that wait at the source all the time.
WAITING = 30_000

#: Age and cap of each pass.
PASSES = ((45, 100_000_000), (30, 100_000_000), (30, 500_000))

_CONFIG = """
[adapters.bench]
type = "redis-stream"
url = "${BENCH_REDIS_URL}"
stream = "bench"
queue = "bench"
body = "body"
delete = true
"""

_FILL_EVENTS = """
INSERT INTO events (source, family, event_type, external_id, trust_mode, payload, payload_size, received_at)
SELECT 'bench', 'queue', 'deploy.finished', 'old:' || lpad(n::text, 9, '0'), 'queue',
       convert_to(rpad('{"event": "deploy.finished", "number": ' || n || ', "log": "', 298, '.') || '"}', 'UTF8'),
       300, now() - interval '60 days' + n * interval '60 days' / %(rows)s
FROM generate_series(%(since)s::bigint, %(until)s::bigint) AS n
"""
_FILL_TODOS = """
INSERT INTO todos (queue, source, title, payload, event_id, idempotency_key, state, owner, attempt, created_at,
                   completed_at)
SELECT 'bench', 'bench', 'deploy finished', convert_from(payload, 'UTF8')::jsonb, id, external_id, 'done', 'old', 1,
       received_at, received_at
FROM events WHERE id > %(since)s AND id <= %(until)s + 1
"""


def fill(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"SET synchronous_commit = off")
        for since in range(0, rows, 100_000):
            span = {"rows": rows, "since": since, "until": min(since + 100_000, rows) - 1}
            connection.execute(_FILL_EVENTS.encode(), span)
            connection.execute(_FILL_TODOS.encode(), span)
        connection.execute(b"VACUUM (ANALYZE) events, todos")


def feed(url: str, stop: threading.Event) -> None:
    client = redis.Redis.from_url(url)
    number = 0
    while not stop.wait(0.05):
        if client.xlen("bench") < WAITING:
            pipeline = client.pipeline(transaction=False)
            for _ in range(5_000):
                event = {"event": "deploy.finished", "repository": "acme/api", "number": number, "log": "." * 230}
                pipeline.xadd("bench", {"body": json.dumps(event)})
                number += 1
            pipeline.execute()
    client.close()


def watch(url: str, stop: threading.Event, seen: list[tuple[float, int]]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.wait(0.25):
            row = connection.execute(b"SELECT max(id) FROM events").fetchone()
            seen.append((time.monotonic(), row[0] if row else 0))


_END = """
UPDATE todos SET state = 'done', completed_at = now(), updated_at = now()
WHERE id IN (SELECT id FROM todos WHERE state = 'pending' ORDER BY queue, created_at LIMIT 20000)
"""


def end(url: str, stop: threading.Event) -> None:
    """Ends what the worker has made: a backlog would be another measurement."""
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.wait(1):
            connection.execute(_END.encode())


def rate(seen: list[tuple[float, int]], began: float, ended: float) -> tuple[float, float]:
    """Events a second between two moments, and the longest time without any."""
    part = [(at, number) for at, number in seen if began <= at <= ended]
    longest, last = 0.0, part[0]
    for at, number in part:
        if number > last[1]:
            longest, last = max(longest, at - last[0]), (at, number)
    longest = max(longest, part[-1][0] - last[0])
    return (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]), longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="switchboard-bench-") as name:
        folder = Path(name)
        with PostgresServer(folder / "postgres") as postgres, ValkeyServer(folder / "valkey") as valkey:
            ledger = Ledger(postgres.url, statement_timeout=timedelta(minutes=10))
            migrate(ledger)
            fill(postgres.url, options.rows)
            print("filled", flush=True)
            (folder / "switchboard.toml").write_text(_CONFIG, encoding="utf-8")
            environment = os.environ | {
                "DATABASE_URL": postgres.url,
                "SWITCHBOARD_BROKER_URL": valkey.url,
                "BENCH_REDIS_URL": valkey.url,
            }
            stop = threading.Event()
            seen: list[tuple[float, int]] = []
            threads = [
                threading.Thread(target=feed, args=(valkey.url, stop)),
                threading.Thread(target=end, args=(postgres.url, stop)),
                threading.Thread(target=watch, args=(postgres.url, stop, seen)),
            ]
            for thread in threads:
                thread.start()
            with (folder / "worker.log").open("w") as log:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "dramatiq", "switchboard.actors", "-p", "1", "-t", "4"],
                    cwd=folder,
                    env=environment,
                    stderr=log,
                )
            try:
                while not seen or seen[-1][1] < options.rows + 5_000:
                    time.sleep(0.5)
                for days, cap in PASSES:
                    calm = time.monotonic()
                    time.sleep(CALM_SECONDS)
                    began = time.monotonic()
                    with ledger.transaction() as transaction:
                        set_setting(transaction.connection, "retention_max_age_days", str(days))
                        set_setting(transaction.connection, "retention_max_rows", str(cap))
                        pruned = prune(transaction.connection, timeout=timedelta(minutes=10))
                    ended = time.monotonic()
                    before, during = rate(seen, calm, began), rate(seen, began, ended)
                    print(
                        f"{days} days, {cap:,} rows: {pruned} in {ended - began:.1f} s; ingestion {before[0]:,.0f}/s "
                        f"before (longest pause {before[1]:.1f} s), {during[0]:,.0f}/s meanwhile (longest pause "
                        f"{during[1]:.1f} s), ratio {during[0] / before[0]:.2f}",
                        flush=True,
                    )
                calm = time.monotonic()
                time.sleep(CALM_SECONDS)
                print(f"after: {rate(seen, calm, time.monotonic())[0]:,.0f}/s")
            finally:
                stop.set()
                worker.send_signal(signal.SIGTERM)
                worker.wait(60)
                for thread in threads:
                    thread.join()
                ledger.close()


if __name__ == "__main__":
    main()
