"""FastStream with a Redis stream subscriber and psycopg, as its documentation has it.

A consumer group, acknowledged after the handler has returned, and psycopg's own pool. ``single``: one message a call;
``workers``: the same with ten calls beside each other (``max_workers``); ``batch``: ``StreamSub(batch=True)`` with as
many messages a call as Switchboard reads, stored by ``executemany``, which psycopg pipelines, in one transaction.
"""

from __future__ import annotations

import asyncio
import os
import sys

from faststream import FastStream
from faststream.redis import RedisBroker, RedisStreamMessage, StreamSub
from psycopg_pool import AsyncConnectionPool

from .messages import FIELD, GROUP, NAME
from .rows import INSERT, row

BATCH, WORKERS = 500, 10

broker = RedisBroker(os.environ.get("BENCH_REDIS_URL", "redis://localhost"))
pool = AsyncConnectionPool(os.environ.get("DATABASE_URL", ""), min_size=WORKERS, max_size=WORKERS, open=False)


async def store(message: RedisStreamMessage) -> None:
    raw = message.raw_message
    async with pool.connection() as connection:
        await connection.set_autocommit(True)
        await connection.execute(INSERT, row(raw["message_ids"][0].decode(), message.body))


async def store_all(message: RedisStreamMessage) -> None:
    raw = message.raw_message
    entries = zip(raw["message_ids"], raw["data"], strict=True)
    rows = [row(entry_id.decode(), fields[FIELD.encode()]) for entry_id, fields in entries]
    async with pool.connection() as connection, connection.cursor() as cursor:
        await cursor.executemany(INSERT, rows)


def subscribe(how: str) -> None:
    consumer = f"faststream-{os.getpid()}"
    if how == "batch":
        broker.subscriber(stream=StreamSub(NAME, group=GROUP, consumer=consumer, batch=True, max_records=BATCH))(
            store_all
        )
    else:
        workers = WORKERS if how == "workers" else 1
        stream = StreamSub(NAME, group=GROUP, consumer=consumer, max_records=100)
        broker.subscriber(stream=stream, max_workers=workers)(store)


async def main() -> None:
    await pool.open()
    subscribe(sys.argv[1])
    await FastStream(broker).run()
    await pool.close()


if __name__ == "__main__":
    asyncio.run(main())
