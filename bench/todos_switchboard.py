"""Todos by Switchboard."""

from __future__ import annotations

import os

import dramatiq

import switchboard
from switchboard.ledger import Ledger, NewTodo, create_todo, create_todos, migrate

from .ticks import Ticker

QUEUE = "bench"

dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["BENCH_REDIS_URL"]))
ticker = Ticker()


@switchboard.todo(queue=QUEUE)
def nothing(todo: switchboard.Todo) -> None:
    ticker.tick()


class Contestant:
    """``bench.contestant.Contestant``, by Switchboard."""

    def __init__(self) -> None:
        self._ledger = Ledger(os.environ["DATABASE_URL"])

    def prepare(self) -> None:
        migrate(self._ledger)

    def create(self) -> None:
        with self._ledger.transaction() as transaction:
            create_todo(transaction.connection, queue=QUEUE, title="nothing", payload={"n": 1})

    def create_many(self, count: int) -> None:
        for start in range(0, count, 1000):
            todos = [NewTodo("nothing", {"n": number}) for number in range(start, min(start + 1000, count))]
            with self._ledger.transaction() as transaction:
                create_todos(transaction.connection, todos, queue=QUEUE)

    def left(self) -> int:
        with self._ledger.transaction() as transaction:
            row = transaction.connection.execute("SELECT count(*) FROM todos WHERE state <> 'done'").fetchone()
        return int(row[0]) if row else 0

    def work(self) -> None:
        raise NotImplementedError("dramatiq's own command runs this module")
