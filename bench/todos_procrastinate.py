"""Todos by procrastinate: a coroutine task, ``batch_defer``, one worker with as many jobs beside each other as pay.

Its pool has a connection for each of them and one more, as its page on pools says for short jobs. Finished jobs stay,
which is its default and what Switchboard does.
"""

from __future__ import annotations

import asyncio
import os

import procrastinate
import psycopg

from .ticks import Ticker

QUEUE = "bench"

CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "8"))

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"], min_size=1, max_size=CONCURRENCY + 1)
)
ticker = Ticker()


@app.task(queue=QUEUE, name="nothing")
async def nothing(n: int) -> None:
    ticker.tick()


class Contestant:
    """``bench.contestant.Contestant``, by procrastinate."""

    def __init__(self) -> None:
        self._open = False

    def prepare(self) -> None:
        with app.open():
            app.schema_manager.apply_schema()

    def create(self) -> None:
        self._opened()
        nothing.defer(n=1)

    def create_many(self, count: int) -> None:
        self._opened()
        for start in range(0, count, 1000):
            nothing.batch_defer(*[{"n": number} for number in range(start, min(start + 1000, count))])

    def left(self) -> int:
        with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
            row = connection.execute("SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'").fetchone()
        return int(row[0]) if row else 0

    def _opened(self) -> None:
        if not self._open:
            app.open()
            self._open = True

    def work(self) -> None:
        asyncio.run(_work())


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(queues=[QUEUE], concurrency=CONCURRENCY)
