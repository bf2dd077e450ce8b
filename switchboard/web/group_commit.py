"""Deliveries of one adapter that wait at the same time are stored in one transaction; each waits for its commit."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from ..errors import LedgerUnavailable, NotFound
from ..ingest import bury, report, store
from ..ledger import Connection, Ledger, adapter_enabled, savepoint
from ..model import Delivery, Route, Stored
from ..normalize import Normalizer

#: How long a statement may take: the sender waits, and GitHub gives up after ten seconds.
STATEMENT_TIMEOUT = timedelta(seconds=8)

#: Deliveries in one transaction, and bytes of their bodies, at most; one larger delivery is alone.
MAX_GROUP, MAX_GROUP_BYTES = 100, 16 * 1024**2

#: Seconds between two looks at the adapter's ``enabled`` flag.
ENABLED_INTERVAL = 1.0

#: What became of a delivery: a todo of its own, one that was there already, or a dead letter.
Kept = Literal["created", "duplicate", "dead letter"]


class AdapterDisabled(LedgerUnavailable):
    """Somebody has stopped the adapter: nothing of it is stored until it may go on."""


class _Mixed(Exception):
    """Some of a group are new and some are not: which, only storing each by itself tells."""


class GroupCommit:
    """The way into the ledger of one adapter's deliveries; used by the thread of the event loop."""

    def __init__(self, ledger: Ledger, route: Route, normalizer: Normalizer, executor: Executor) -> None:
        self._ledger = ledger
        self._route = route
        self._normalizer = normalizer
        self._executor = executor
        self._waiting: list[tuple[Delivery, asyncio.Future[Kept]]] = []
        self._task: asyncio.Task[None] | None = None
        self._enabled_until = 0.0

    async def store(self, delivery: Delivery) -> Kept:
        """Stores the delivery and returns once that is committed.

        Raises ``LedgerError`` where nothing is stored, ``AdapterDisabled`` where nothing is to be.
        """
        kept: asyncio.Future[Kept] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, kept))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await kept

    async def _run(self) -> None:
        while self._waiting:
            group = self._take()
            deliveries = [delivery for delivery, _ in group]
            try:
                loop = asyncio.get_running_loop()
                outcome: Sequence[Kept] = await loop.run_in_executor(self._executor, self._store, deliveries)
            except BaseException as error:  # noqa: BLE001 - each of them is told, and raises it
                for _, kept in group:
                    if not kept.done():
                        kept.set_exception(error)
            else:
                for (_, kept), one in zip(group, outcome, strict=True):
                    # Done before: whoever waited for it was cancelled.
                    if not kept.done():
                        kept.set_result(one)
        self._task = None

    def _take(self) -> list[tuple[Delivery, asyncio.Future[Kept]]]:
        size = count = 0
        for delivery, _ in self._waiting[:MAX_GROUP]:
            size += len(delivery.body)
            if count and size > MAX_GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _store(self, deliveries: Sequence[Delivery]) -> list[Kept]:
        doing = f"store from adapter {self._route.adapter}"
        with self._ledger.transaction(timeout=STATEMENT_TIMEOUT, doing=doing) as transaction:
            self._check_enabled(transaction.connection)
            parts = self._put(transaction.connection, deliveries)
            for _, outcome in parts:
                transaction.on_commit(functools.partial(report, self._route, outcome))
        return [kept for part, outcome in parts for kept in _each(part, outcome) or ()]

    def _check_enabled(self, connection: Connection) -> None:
        if time.monotonic() < self._enabled_until:
            return
        try:
            enabled = adapter_enabled(connection, self._route.adapter)
        except NotFound:
            enabled = False
        if not enabled:
            raise AdapterDisabled(f"adapter {self._route.adapter} is disabled")
        self._enabled_until = time.monotonic() + ENABLED_INTERVAL

    def _put(self, connection: Connection, deliveries: Sequence[Delivery]) -> list[tuple[Sequence[Delivery], Stored]]:
        if len(deliveries) > 1:
            try:
                with savepoint(connection, "store together"):
                    outcome = self._put_together(connection, deliveries)
                    if _each(deliveries, outcome) is None:
                        raise _Mixed
                return [(deliveries, outcome)]
            except _Mixed:
                pass
        return [([delivery], self._put_together(connection, [delivery])) for delivery in deliveries]

    def _put_together(self, connection: Connection, deliveries: Sequence[Delivery]) -> Stored:
        outcome = store(connection, self._route, self._normalizer, deliveries)
        if not outcome.refused:
            return outcome
        # No redelivery would fare better, and not every sender tries again: it is kept, for somebody to look at.
        buried = bury(
            connection,
            self._route,
            self._normalizer,
            [replace(delivery, last_error=why) for delivery, why in outcome.refused],
        )
        return replace(
            outcome,
            dead_letters=[*outcome.dead_letters, *buried.dead_letters],
            letters=[*outcome.letters, *buried.letters],
        )


def _each(deliveries: Sequence[Delivery], outcome: Stored) -> list[Kept] | None:
    """What became of each; None where the counts do not tell."""
    dead = {id(letter.delivery) for letter in outcome.letters} | {id(delivery) for delivery, _ in outcome.refused}
    alive = sum(id(delivery) not in dead for delivery in deliveries)
    if outcome.new not in (0, alive):
        return None
    kept: Kept = "created" if outcome.new else "duplicate"
    return ["dead letter" if id(delivery) in dead else kept for delivery in deliveries]
