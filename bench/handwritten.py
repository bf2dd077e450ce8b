"""The loop that a team writes by hand: redis-py and psycopg, one message a transaction, acknowledged after it.

It reads a hundred at a time, keeps its one connection, commits each message with its only statement, and psycopg
prepares that statement by itself.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256

import psycopg
import redis

from .messages import FIELD, GROUP, NAME, read
from .rows import INSERT, row


def consume_stream(client: redis.Redis, connection: psycopg.Connection) -> None:
    consumer = f"by-hand-{os.getpid()}"
    while True:
        for entry_id, fields in read(client, consumer, 100):
            connection.execute(INSERT, row(entry_id.decode(), fields[FIELD.encode()]))
            client.xack(NAME, GROUP, entry_id)


def consume_list(client: redis.Redis, connection: psycopg.Connection) -> None:
    processing = f"{NAME}:processing:{os.getpid()}"
    while True:
        body = client.blmove(NAME, processing, 1, "RIGHT", "LEFT")
        if isinstance(body, bytes):
            connection.execute(INSERT, row(sha256(body).hexdigest(), body))
            client.lrem(processing, 1, body)  # type: ignore[arg-type]  # it takes bytes, too


def main() -> None:
    client = redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        (consume_stream if sys.argv[1] == "stream" else consume_list)(client, connection)


if __name__ == "__main__":
    main()
