"""``switchboard todos``: the durable work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, get_args

import click
from psycopg.types.json import set_json_loads
from pydantic import TypeAdapter, ValidationError

from ..adapter import Duration
from ..ledger import Connection, Ledger, cancel_todo, get_todo, list_todos, retry_todo
from ..ledger.todos import TodoFilter, database_time, lock_todo, select_todos
from ..model import RawJson, TodoRow, TodoState
from ..redact import redact
from .database import ledger_connection
from .options import before_option, ids_argument, limit_option, some_ids_argument
from .output import as_row, json_option, write_records, write_table
from .settle import SELECTED_PAGE, selected, settle

Command = TypeVar("Command", bound=Callable[..., Any])

#: No todo is older.
LONGEST_AGE = timedelta(days=36_500)

_COLUMNS = ("id", "queue", "state", "attempt", "created_at", "title")


def _age(text: str) -> timedelta:
    try:
        age: timedelta = TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        raise click.BadParameter(
            f'{text!r}: expected a duration with its unit, such as "90s", "30m", "2h" or "7d"'
        ) from None
    if age > LONGEST_AGE:
        raise click.BadParameter(f"{text!r}: expected {LONGEST_AGE.days}d at most")
    return age


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The filters as they were given."""

    queue: str | None
    state: TodoState | None
    kind: str | None
    key: str | None
    older_than: timedelta | None
    newer_than: timedelta | None

    def __bool__(self) -> bool:
        return any(
            given is not None
            for given in (self.queue, self.state, self.kind, self.key, self.older_than, self.newer_than)
        )

    def on(self, connection: Connection) -> TodoFilter:
        """The filter, its ages turned once into times of the database's clock."""
        ages = self.older_than is not None or self.newer_than is not None
        now = database_time(connection) if ages else None
        return TodoFilter(
            queue=self.queue,
            states=() if self.state is None else (self.state,),
            kind=self.kind,
            idempotency_key=self.key,
            created_before=None if now is None or self.older_than is None else now - self.older_than,
            created_since=None if now is None or self.newer_than is None else now - self.newer_than,
        )


def _filters(*states: TodoState) -> Callable[[Command], Command]:
    """The options that select todos, those in ``states`` alone."""
    options = (
        click.option("--queue", help="Only todos of this queue."),
        click.option("--state", type=click.Choice(states), help="Only todos in this state."),
        click.option("--kind", help="Only todos of this kind."),
        click.option("--key", help="Only todos with this idempotency key."),
        click.option("--older-than", metavar="AGE", type=_age, help='Only todos made longer ago: "30m", "2h", "7d".'),
        click.option("--newer-than", metavar="AGE", type=_age, help="Only todos made since then."),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group()
def todos() -> None:
    """Look at the todos, run them once more, or call them off.

    \b
    Examples:
      switchboard todos list --queue deploys
      switchboard todos show 17
      switchboard todos retry --queue deploys --state failed
      switchboard todos cancel 17
    """


@todos.command("list")
@_filters(*get_args(TodoState))
@limit_option
@before_option
@json_option
def list_(limit: int, before: int | None, as_json: bool, **filters: Any) -> None:
    """List the newest todos that all filters agree with.

    The next page is --before the last ID of this one. Ages go by created_at and the database's clock. The newest
    todos, the pending and the claimed ones come at once, however many there are; to find what few or none match,
    PostgreSQL looks through the table, a second for some three million todos.

    \b
    Examples:
      switchboard todos list --queue deploys --state pending --older-than 1h
      switchboard todos list --limit 100 --before 4711
      switchboard todos list --key redis:deploys:1718000000000-0
      switchboard todos list --state failed --newer-than 2d --json
    """
    with ledger_connection("list todos") as connection:
        _keep_numbers(connection)
        where = _Asked(**filters).on(connection)
        found = list_todos(
            connection,
            queue=where.queue,
            state=where.states[0] if where.states else None,
            kind=where.kind,
            idempotency_key=where.idempotency_key,
            created_before=where.created_before,
            created_since=where.created_since,
            before=before,
            limit=limit,
        )
    write_table([_row(todo) for todo in found], _COLUMNS, nothing="no todos", as_json=as_json, free_text=("title",))


@todos.command()
@ids_argument
@json_option
def show(ids: tuple[int, ...], as_json: bool) -> None:
    """Show todos with everything they have.

    \b
    Examples:
      switchboard todos show 17
      switchboard todos show 17 18 --json
    """
    with ledger_connection("show todos") as connection:
        _keep_numbers(connection)
        found = [get_todo(connection, todo_id) for todo_id in ids]
    write_records([_row(todo) for todo in found], title="todo", as_json=as_json)


@todos.command()
@some_ids_argument
@_filters("done", "failed")
@json_option
def retry(ids: tuple[int, ...], as_json: bool, **filters: Any) -> None:
    """Make todos that are done or failed pending again, with all their attempts.

    Those with these IDs, or every one that `switchboard todos list` shows with the same filters: without --state that
    is the done ones, too. Each in a transaction of its own; one whose key a live todo has by now is not retried, and
    the command fails at the end.

    \b
    Examples:
      switchboard todos retry 17 18
      switchboard todos retry --queue deploys --state failed --newer-than 2h
    """
    _settle("retry", ids, _Asked(**filters), ("done", "failed"), _retry_one, as_json)


@todos.command()
@some_ids_argument
@_filters("pending", "claimed")
@json_option
def cancel(ids: tuple[int, ...], as_json: bool, **filters: Any) -> None:
    """Make todos that are pending or claimed failed, with the error "cancelled".

    Those with these IDs, or every one that `switchboard todos list` shows with the same filters. A handler that is at
    work on one runs on, and cannot complete it.

    \b
    Examples:
      switchboard todos cancel 17 18
      switchboard todos cancel --queue deploys --state pending --older-than 1d
    """
    _settle("cancel", ids, _Asked(**filters), ("pending", "claimed"), _cancel_one, as_json)


def _retry_one(connection: Connection, todo_id: int) -> str:
    retry_todo(connection, todo_id)
    return "retried"


def _cancel_one(connection: Connection, todo_id: int) -> str:
    cancel_todo(connection, todo_id)
    return "cancelled"


def _settle(
    doing: str,
    ids: tuple[int, ...],
    asked: _Asked,
    states: tuple[TodoState, ...],
    settle_one: Callable[[Connection, int], str],
    as_json: bool,
) -> None:
    if bool(ids) == bool(asked):
        raise click.UsageError("give the IDs, or select with --queue, --state, --kind, --key or an age")
    if ids:
        settle(doing, "todo", lambda ledger: ids, settle_one, as_json)
        return
    # The same moment for every page: none drops out because the pages before it took long.
    with ledger_connection(f"{doing} todos") as connection:
        where = asked.on(connection)
    where = replace(where, states=where.states or states)

    def select(ledger: Ledger) -> Iterable[int]:
        return selected(
            ledger, "select todos", lambda c, before: select_todos(c, where, before=before, limit=SELECTED_PAGE)
        )

    def settle_selected(connection: Connection, todo_id: int) -> str:
        # What has changed since it was selected is not what the filter shows any more.
        if not lock_todo(connection, todo_id, where):
            return "changed meanwhile, left alone"
        return settle_one(connection, todo_id)

    settle(doing, "todo", select, settle_selected, as_json)


def _row(todo: TodoRow) -> dict[str, object]:
    # The error is whatever a handler's libraries said; title and payload are the message's own, shown as they are.
    return as_row(todo) | {"last_error": None if todo.last_error is None else redact(todo.last_error)}


def _keep_numbers(connection: Connection) -> None:
    set_json_loads(lambda text: RawJson(text if isinstance(text, str) else text.decode()), connection)
