"""What a todo costs: no-op handlers in one worker process against the same no-op through Dramatiq's own Redis broker.

Both in one run, with the same threads, on PostgreSQL 18 and Valkey with their default durability. Rates are between the
first and the last tenth, so that neither the start nor the end counts. And how long a todo waits on an idle queue, from
its commit, about, to its claim.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dramatiq
import psycopg
import redis
from dramatiq.brokers.redis import RedisBroker

from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.ledger import Ledger, create_todo, migrate

#: Todos, and messages: enough for some seconds each.
TODOS, MESSAGES = 60_000, 20_000

#: Worker threads of the one process.
THREADS = 8

#: Todos made one at a time on an idle queue.
IDLE = 100

_TODOS = """
import os
import dramatiq, switchboard

dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["BENCH_REDIS_URL"]))


@switchboard.todo(queue="bench")
def nothing(todo):
    pass
"""

_MESSAGES = """
import os
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS_URL"]))


@dramatiq.actor(queue_name="bench")
def nothing(payload):
    pass
"""


@contextmanager
def worker(folder: Path, module: str, database: str, source: str) -> Iterator[None]:
    environment = os.environ | {"DATABASE_URL": database, "BENCH_REDIS_URL": source}
    with (folder / f"{module}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dramatiq", module, "-p", "1", "-t", str(THREADS)],
            cwd=folder,
            env=environment,
            stderr=log,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def rate(done: Callable[[], int], total: int) -> float:
    """Done a second between a tenth and nine tenths of the total, by what is seen meanwhile."""
    first: tuple[float, int] | None = None
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        count, now = done(), time.monotonic()
        if first is None and count >= total * 0.1:
            first = (now, count)
        if first is not None and count >= total * 0.9 and count > first[1]:
            return (count - first[1]) / (now - first[0])
        # Counting todos reads the whole table: not so often that it slows what it counts.
        time.sleep(0.25)
    raise SystemExit("the worker did not get through within five minutes")


def todos(folder: Path, database: str, source: str) -> float:
    (folder / "bench_todos.py").write_text(_TODOS, encoding="utf-8")
    insert = "INSERT INTO todos (queue, title, payload) SELECT 'bench', 'n', '{\"n\": 1}' FROM generate_series(1, %s)"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(insert.encode(), (TODOS,))

        def done() -> int:
            row = connection.execute("SELECT count(*) FROM todos WHERE state = 'done'").fetchone()
            return int(row[0]) if row else 0

        with worker(folder, "bench_todos", database, source):
            return rate(done, TODOS)


def messages(folder: Path, database: str, source: str) -> float:
    (folder / "bench_messages.py").write_text(_MESSAGES, encoding="utf-8")
    broker = RedisBroker(url=source)  # type: ignore[no-untyped-call]
    broker.declare_queue("bench")
    for _ in range(MESSAGES):
        broker.enqueue(
            dramatiq.Message(queue_name="bench", actor_name="nothing", args=({"n": 1},), kwargs={}, options={})
        )
    with redis.Redis.from_url(source) as client, worker(folder, "bench_messages", database, source):
        # A message stays in the hash until it is acknowledged.
        answer = rate(lambda: MESSAGES - int(client.hlen("dramatiq:bench.msgs")), MESSAGES)
    broker.close()
    return answer


def latency(folder: Path, database: str, source: str) -> float:
    """Milliseconds from a todo's making to its claim, the median of those made one at a time on an idle queue."""
    ledger = Ledger(database)
    with worker(folder, "bench_todos", database, source), psycopg.connect(database, autocommit=True) as connection:
        waits: list[float] = []
        while len(waits) < IDLE + 1:
            with ledger.transaction() as transaction:
                made, _ = create_todo(transaction.connection, queue="bench", title="idle")
            waits.append(_wait(connection, made.id))
    ledger.close()
    # The first one waited for the worker's start.
    return statistics.median(waits[1:]) * 1000


def _wait(connection: psycopg.Connection, todo_id: int) -> float:
    query = "SELECT extract(epoch FROM claimed_at - created_at)::float FROM todos WHERE id = %s AND state = 'done'"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        row = connection.execute(query.encode(), (todo_id,)).fetchone()
        if row is not None:
            return float(row[0])
        time.sleep(0.005)
    raise SystemExit("a todo was not worked within a minute")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="switchboard-bench-") as name:
        folder = Path(name)
        with PostgresServer(folder / "postgres") as postgres, ValkeyServer(folder / "valkey") as valkey:
            ledger = Ledger(postgres.url)
            migrate(ledger)
            ledger.close()
            ours = todos(folder, postgres.url, valkey.url)
            print(f"todos:                   {ours:>8,.0f} a second", flush=True)
            theirs = messages(folder, postgres.url, valkey.url)
            print(f"Dramatiq's Redis broker: {theirs:>8,.0f} a second", flush=True)
            print(f"ratio: {ours / theirs:.1f}", flush=True)
            print(f"idle queue: {latency(folder, postgres.url, valkey.url):.1f} ms from commit to claim (median)")


if __name__ == "__main__":
    main()
