"""Deliveries of one adapter that wait at the same time are stored in one transaction; each waits for its commit.

A group that fails is stored once more, each by itself: one whose key somebody has locked fails alone.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, TypeAlias

from ..backoff import Outage
from ..errors import Conflict, LedgerUnavailable
from ..ingest import bury, idempotency_key, report, store
from ..ledger import Connection, Ledger, adapter_enabled, savepoint
from ..model import Delivery, Route, Stored
from ..normalize import Normalizer
from .away import is_away
from .limits import STATEMENT_TIMEOUT

#: How long a statement of several deliveries may take, and each alone after it: together what one may take.
TOGETHER_TIMEOUT = STATEMENT_TIMEOUT / 2

#: Deliveries in one transaction, and bytes of their bodies, at most; one larger delivery is alone.
MAX_GROUP, MAX_GROUP_BYTES = 100, 16 * 1024**2

#: Seconds between two looks at the adapter's ``enabled`` flag.
ENABLED_INTERVAL = 1.0

#: What became of a delivery: a todo of its own, one that was there already, or a dead letter.
Kept = Literal["created", "duplicate", "dead letter"]

#: A delivery, and who waits to hear of it.
_Waiting: TypeAlias = tuple[Delivery, "asyncio.Future[Kept]"]


class _Mixed(Exception):
    """Some of a group are new and some are not: which, only storing each by itself tells."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What was stored in one go: each delivery with what became of it, and what is to be reported of them."""

    kept: Sequence[tuple[Delivery, Kept]]
    stored: Stored


class GroupCommit:
    """The way into the ledger of one adapter's deliveries; used by the thread of the event loop."""

    def __init__(
        self, ledger: Ledger, route: Route, normalizer: Normalizer, executor: Executor, outage: Outage
    ) -> None:
        self._ledger = ledger
        self._route = route
        self._normalizer = normalizer
        self._executor = executor
        self._outage = outage
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()
        self._enabled_until = 0.0

    async def store(self, delivery: Delivery) -> Kept:
        """Stores the delivery and returns once that is committed.

        Raises ``LedgerError`` where nothing is stored; ``Conflict`` or ``NotFound`` where the adapter may not.
        """
        kept: asyncio.Future[Kept] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, kept))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await kept

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = self._take()
                if len(group) == 1:
                    await self._run_group(group, STATEMENT_TIMEOUT)
                elif not await self._run_group(group, TOGETHER_TIMEOUT, again=True):
                    # The next group does not wait for them.
                    for one in group:
                        task = asyncio.create_task(self._run_alone(one))
                        self._alone.add(task)
                        task.add_done_callback(self._alone.discard)
        finally:
            self._task = None

    async def _run_alone(self, one: _Waiting) -> None:
        await self._run_group([one], TOGETHER_TIMEOUT)

    async def _run_group(self, group: Sequence[_Waiting], statement_timeout: timedelta, *, again: bool = False) -> bool:
        """Tells each what became of it; false where nobody was told, as they may fare better ``again``, each alone."""
        deliveries = [delivery for delivery, _ in group]
        try:
            loop = asyncio.get_running_loop()
            outcome: Sequence[Kept] = await loop.run_in_executor(
                self._executor, self._store, deliveries, statement_timeout
            )
        except Exception as error:  # noqa: BLE001 - each of them is told, and raises it
            if isinstance(error, LedgerUnavailable):
                if is_away(error):
                    self._outage.failed(error)
                elif again:
                    return False
            for _, kept in group:
                # Done: whoever waited for it has gone.
                if not kept.done():
                    kept.set_exception(error)
        else:
            self._outage.over()
            for (_, kept), one in zip(group, outcome, strict=True):
                if not kept.done():
                    kept.set_result(one)
        return True

    def _take(self) -> list[_Waiting]:
        size = count = 0
        for delivery, _ in self._waiting[:MAX_GROUP]:
            size += len(delivery.body)
            if count and size > MAX_GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _store(self, deliveries: Sequence[Delivery], timeout: timedelta = STATEMENT_TIMEOUT) -> list[Kept]:
        doing = f"store from adapter {self._route.adapter}"
        with self._ledger.transaction(timeout=timeout, doing=doing) as transaction:
            self._check_enabled(transaction.connection)
            parts = self._put(transaction.connection, deliveries)
            for part in parts:
                transaction.on_commit(functools.partial(report, self._route, part.stored))
        kept = {id(delivery): one for part in parts for delivery, one in part.kept}
        return [kept[id(delivery)] for delivery in deliveries]

    def _check_enabled(self, connection: Connection) -> None:
        if time.monotonic() < self._enabled_until:
            return
        if not adapter_enabled(connection, self._route.adapter):
            raise Conflict(f"adapter {self._route.adapter} is disabled")
        self._enabled_until = time.monotonic() + ENABLED_INTERVAL

    def _put(self, connection: Connection, deliveries: Sequence[Delivery]) -> list[_Part]:
        if len(deliveries) > 1:
            with suppress(_Mixed), savepoint(connection, "store together"):
                return [self._put_together(connection, deliveries)]
        # In the order of their keys, as a batch is: two processes that have the same must not wait for each other.
        ordered = sorted(deliveries, key=lambda delivery: idempotency_key(self._route, delivery))
        return [self._put_together(connection, [delivery]) for delivery in ordered]

    def _put_together(self, connection: Connection, deliveries: Sequence[Delivery]) -> _Part:
        """Stores them; ``_Mixed`` where the counts do not tell what became of each."""
        outcome = store(connection, self._route, self._normalizer, deliveries)
        dead = {id(letter.delivery) for letter in outcome.letters} | {id(delivery) for delivery, _ in outcome.refused}
        alive = sum(id(delivery) not in dead for delivery in deliveries)
        if outcome.new not in (0, alive):
            raise _Mixed
        if outcome.refused:
            # No redelivery would fare better, and not every sender tries again: it is kept, for somebody to look at.
            refused = [replace(delivery, last_error=why) for delivery, why in outcome.refused]
            buried = bury(connection, self._route, self._normalizer, refused)
            letters, written = [*outcome.letters, *buried.letters], [*outcome.dead_letters, *buried.dead_letters]
            outcome = replace(outcome, letters=letters, dead_letters=written, refused=())
        made: Kept = "created" if outcome.new else "duplicate"
        return _Part([(each, "dead letter" if id(each) in dead else made) for each in deliveries], outcome)
