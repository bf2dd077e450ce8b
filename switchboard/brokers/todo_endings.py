"""How a todo's time in a worker ended, and how that is written."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dramatiq
from dramatiq.common import compute_backoff

from ..claimed import LeaseLost, Todo
from ..errors import Conflict, LedgerError, LedgerUnavailable, NotFound
from ..ledger import Connection, complete_todos, fail_todo, release_todos, savepoint
from ..telemetry.metrics import count
from .todo_options import TodoOptions

logger = logging.getLogger(__name__)

#: Seconds that a todo waits which a middleware skipped or refused: at once would be again and again.
SKIPPED_WAIT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class End:
    """How a todo's time in this worker ended: completed by its receipt, failed by an error, or else released."""

    todo: Todo
    error: BaseException | None = None
    #: None: back to pending at once. Else it waits for so long.
    wait: timedelta | None = None
    final: bool = False

    @property
    def key(self) -> tuple[int, str]:
        return self.todo.id, self.todo.owner or ""


class Endings:
    """Of the todos of one queue, which its actor works."""

    def __init__(self, queue: str, actor: dramatiq.Actor[Any, Any], options: TodoOptions) -> None:
        self._queue = queue
        self._throws = actor.options.get("throws") or ()
        self._options = options
        self._fields: dict[str, object] = {"queue": queue}

    def of(self, todo: Todo, failure: BaseException | None) -> End | None:
        """How it ended, with the failure that its message had; None where its own transaction has written that."""
        receipt = todo.hold.receipt
        if receipt is not None:
            return None if receipt.completed else End(todo)
        if failure is None or not todo.hold.begun:
            return End(todo, wait=SKIPPED_WAIT)
        final = isinstance(failure, self._throws) and not isinstance(failure, LeaseLost)
        return End(todo, error=failure, wait=self._backoff(todo, failure), final=final)

    def _backoff(self, todo: Todo, failure: BaseException) -> timedelta:
        if isinstance(failure, dramatiq.Retry) and failure.delay is not None:
            return timedelta(milliseconds=failure.delay)
        first, most = (
            int(wait.total_seconds() * 1000) for wait in (self._options.min_backoff, self._options.max_backoff)
        )
        _, wait = compute_backoff(todo.attempt - 1, factor=first, max_backoff=most)
        return timedelta(milliseconds=wait)

    def write(self, connection: Connection, ended: list[End], *, carefully: bool) -> None:
        """Writes how these ended; ``carefully`` one by one, so that one which the ledger refuses fails alone."""
        if not carefully:
            self._write_group(connection, ended)
            return
        for end in ended:
            try:
                with savepoint(connection, f"end todo {end.todo.id}"):
                    self._write_group(connection, [end])
            except LedgerUnavailable:
                raise
            except LedgerError as error:
                logger.error(
                    "todo %d of queue %s: how it ended cannot be stored: %s", end.todo.id, self._queue, error,
                    extra=self._fields | {"todo_id": end.todo.id},
                )  # fmt: skip
                self._fail_carefully(connection, end, error)

    def _fail_carefully(self, connection: Connection, end: End, error: LedgerError) -> None:
        try:
            with savepoint(connection, f"fail todo {end.todo.id}"):
                self._fail(connection, end, error)
        except LedgerUnavailable:
            raise
        except LedgerError as refusal:
            logger.error(
                "todo %d of queue %s: it stays claimed until its lease runs out: %s", end.todo.id, self._queue, refusal,
                extra=self._fields | {"todo_id": end.todo.id},
            )  # fmt: skip

    def _fail(self, connection: Connection, end: End, error: BaseException) -> None:
        try:
            # A wait of nothing is one, too: dramatiq.Retry(delay=0).
            wait = self._options.min_backoff if end.wait is None else end.wait
            fail_todo(connection, *end.key, error=error, retry_in=wait, final=end.final)
        except Conflict:
            self._warn_of_lost([end], set(), "failed")
        except NotFound:
            logger.warning(
                "todo %d of queue %s: its row was deleted while it was worked", end.todo.id, self._queue,
                extra=self._fields | {"todo_id": end.todo.id},
            )  # fmt: skip

    def _write_group(self, connection: Connection, ended: list[End]) -> None:
        complete = [end for end in ended if (receipt := end.todo.hold.receipt) is not None and not receipt.completed]
        release = [end for end in ended if end.todo.hold.receipt is None and end.error is None]
        if complete:
            results = [(*end.key, receipt.result) for end in complete if (receipt := end.todo.hold.receipt)]
            self._warn_of_lost(complete, complete_todos(connection, results), "completed")
        for wait in {end.wait for end in release}:
            group = [end for end in release if end.wait == wait]
            self._warn_of_lost(group, release_todos(connection, [end.key for end in group], wait=wait), "released")
        for end in ended:
            if end.error is not None and end.todo.hold.receipt is None:
                self._fail(connection, end, end.error)

    def _warn_of_lost(self, ends: list[End], settled: set[int], what: str) -> None:
        for end in ends:
            if end.todo.id not in settled:
                count("switchboard_leases_lost", queue=self._queue)
                self.say_lost(end.todo, f"its lease is another's now, it is not {what} by this worker")

    def say_lost(self, todo: Todo, what: str) -> None:
        """An error the first time, which Sentry is told of where it is set up: somebody does this todo twice."""
        level = logging.WARNING if todo.hold.lost_is_said else logging.ERROR
        todo.hold.lost = todo.hold.lost_is_said = True
        logger.log(
            level, "todo %d of queue %s: %s", todo.id, self._queue, what,
            extra=self._fields | {"todo_id": todo.id, "reason": "lease_lost"},
        )  # fmt: skip
