"""``switchboard todos``: the durable work."""

from __future__ import annotations

from typing import get_args

import click
from psycopg.types.json import set_json_loads

from ..ledger import Connection, get_todo, list_todos
from ..model import Todo, TodoState
from ..redact import redact
from .database import ledger_connection
from .options import before_option, ids_argument, limit_option
from .output import RawJson, as_row, json_option, write_records, write_table

_COLUMNS = ("id", "queue", "state", "attempt", "created_at", "title")


@click.group()
def todos() -> None:
    """Look at the todos.

    \b
    Examples:
      switchboard todos list --queue deploys
      switchboard todos show 17
    """


@todos.command("list")
@click.option("--queue", help="Only todos of this queue.")
@click.option("--state", type=click.Choice(get_args(TodoState)), help="Only todos in this state.")
@limit_option
@before_option
@json_option
def list_(queue: str | None, state: TodoState | None, limit: int, before: int | None, as_json: bool) -> None:
    """List the newest todos.

    \b
    Examples:
      switchboard todos list --queue deploys --state pending
      switchboard todos list --limit 100 --before 4711
      switchboard todos list --state failed --json
    """
    with ledger_connection("list todos") as connection:
        _keep_numbers(connection)
        found = list_todos(connection, queue=queue, state=state, before=before, limit=limit)
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


def _row(todo: Todo) -> dict[str, object]:
    # The error is whatever a handler's libraries said; title and payload are the message's own, shown as they are.
    return as_row(todo) | {"last_error": None if todo.last_error is None else redact(todo.last_error)}


def _keep_numbers(connection: Connection) -> None:
    set_json_loads(lambda text: RawJson(text if isinstance(text, str) else text.decode()), connection)
