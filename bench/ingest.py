"""What batching is worth: one worker process at ``batch = 500`` against the same code at ``batch = 1``, in one run.

Both read the same messages from Valkey and store them in PostgreSQL 18, each server started for the run with its
default durability. Rates are todos a second between the first and the last seen in the table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import redis

from switchboard.embedded import PostgresServer, ValkeyServer

#: Messages for each batch size: enough for some seconds.
ROUNDS = ((1, 4_000), (500, 100_000))

_CONFIG = """
[adapters.bench]
type = "redis-stream"
url = "${{BENCH_REDIS_URL}}"
stream = "bench"
queue = "bench"
body = "body"
batch = {batch}
"""


def measure(folder: Path, database: str, source: str, batch: int, messages: int) -> float:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    client = redis.Redis.from_url(source)
    client.flushall()
    for start in range(0, messages, 1000):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + 1000, messages)):
            event = {"event": "deploy.finished", "repository": "acme/api", "number": number, "log": "." * 300}
            pipeline.xadd("bench", {"body": json.dumps(event)})
        pipeline.execute()
    (folder / "switchboard.toml").write_text(_CONFIG.format(batch=batch), encoding="utf-8")
    environment = os.environ | {"DATABASE_URL": database, "SWITCHBOARD_BROKER_URL": source, "BENCH_REDIS_URL": source}
    with (folder / f"worker-{batch}.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "dramatiq", "switchboard.actors", "-p", "1", "-t", "4"],
            cwd=folder,
            env=environment,
            stderr=log,
        )
    try:
        return _rate(database, messages)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        client.close()


def _rate(database: str, messages: int) -> float:
    first: tuple[float, int] | None = None
    deadline = time.monotonic() + 300
    with psycopg.connect(database, autocommit=True) as connection:
        while time.monotonic() < deadline:
            try:
                row = connection.execute("SELECT count(*) FROM todos").fetchone()
            except psycopg.errors.UndefinedTable:
                row = None
            stored = row[0] if row else 0
            now = time.monotonic()
            if stored and first is None:
                first = (now, stored)
            if first is not None and stored >= messages:
                return float((stored - first[1]) / (now - first[0]))
            time.sleep(0.02)
    raise SystemExit("the worker did not store everything within five minutes")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="switchboard-bench-") as name:
        folder = Path(name)
        with PostgresServer(folder / "postgres") as postgres, ValkeyServer(folder / "valkey") as valkey:
            rates = {}
            for batch, messages in ROUNDS:
                rates[batch] = measure(folder, postgres.url, valkey.url, batch, messages)
                print(f"batch = {batch:>3}: {rates[batch]:>8,.0f} todos a second", flush=True)
    print(f"ratio: {rates[500] / rates[1]:.1f}")


if __name__ == "__main__":
    main()
