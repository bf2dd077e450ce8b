"""Todos by pgqueuer: asyncpg, uvloop, a connection of its own for the manager, ``autovac`` and durable tables.

Its page on performance says to raise ``batch_size`` for short jobs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from .ticks import Ticker

QUEUE = "bench"

BATCH = int(os.environ.get("BENCH_BATCH", "100"))


class Contestant:
    """``bench.contestant.Contestant``, by pgqueuer."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._connection: asyncpg.Connection | None = None

    def prepare(self) -> None:
        for command in ("install", "autovac"):
            subprocess.run(
                [sys.executable, "-m", "pgqueuer", "--pg-dsn", os.environ["DATABASE_URL"], command],
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def create(self) -> None:
        self._runner.run(self._enqueue(1))

    def create_many(self, count: int) -> None:
        for start in range(0, count, 1000):
            self._runner.run(self._enqueue(min(1000, count - start)))

    async def _enqueue(self, count: int) -> None:
        queries = Queries(AsyncpgDriver(await self._connected()))
        if count == 1:
            await queries.enqueue(QUEUE, b'{"n": 1}')
        else:
            await queries.enqueue([QUEUE] * count, [b'{"n": 1}'] * count, [0] * count)

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None:
            self._connection = await asyncpg.connect(os.environ["DATABASE_URL"])
        return self._connection

    def left(self) -> int:
        return self._runner.run(self._count())

    async def _count(self) -> int:
        # A job that has ended well leaves the table.
        return int(await (await self._connected()).fetchval("SELECT count(*) FROM pgqueuer"))

    def work(self) -> None:
        self._runner.run(_work())


async def _work() -> None:
    ticker = Ticker()
    manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["DATABASE_URL"])))

    @manager.entrypoint(QUEUE)
    async def nothing(job: Job) -> None:
        ticker.tick()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
    await manager.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=10))
