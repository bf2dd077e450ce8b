"""The one row that an argument means: by its id, or by its name where one row alone has that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import click

from ..errors import Conflict, NotFound
from ..ledger import (
    AgentRow,
    Connection,
    EndpointRow,
    HumanRow,
    find_human,
    get_agent,
    get_endpoint,
    get_human,
    list_agents,
    list_endpoints,
    list_humans,
)
from .options import nearest

#: Characters of a name, at most; queues of adapters have the same limit.
LONGEST_NAME = 200

#: Digits that certainly fit into an id.
_ID_DIGITS = 18


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=_Named)


def name_of_its_own(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """A new row's name, as click's callback: nothing that a terminal would take for more, or this command for an id."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise click.BadParameter(f"expected 1 to {LONGEST_NAME} printable characters, without spaces around them")
    if _is_id(name):
        raise click.BadParameter(f"{name!r} would be taken for an id: expected more than digits")
    return name


def chosen_human(connection: Connection, given: str) -> HumanRow:
    """The person with this id or address."""
    if _is_id(given):
        return get_human(connection, int(given))
    try:
        return find_human(connection, given)
    except NotFound as error:
        raise NotFound(f"{error}{nearest(given, [human.email for human in list_humans(connection)])}") from error


def chosen_agent(connection: Connection, given: str) -> AgentRow:
    """The agent with this id, whatever became of it, or the one with this name that is not revoked."""
    if _is_id(given):
        return get_agent(connection, int(given))
    return _only("agent", given, list_agents(connection), lambda agent: f"{agent.id} of {agent.owner}")


def chosen_endpoint(connection: Connection, given: str) -> EndpointRow:
    """The endpoint with this id, whatever became of it, or the one with this name that is not revoked."""
    if _is_id(given):
        return get_endpoint(connection, int(given))
    return _only("endpoint", given, list_endpoints(connection), lambda endpoint: f"{endpoint.id} of {endpoint.agent}")


def _only(noun: str, name: str, rows: Sequence[Row], whose: Callable[[Row], str]) -> Row:
    found = [row for row in rows if row.name == name]
    if not found:
        raise NotFound(f"no {noun} {name}{nearest(name, [row.name for row in rows])}")
    if len(found) > 1:
        raise Conflict(f"{noun} {name} is {' or '.join(whose(row) for row in found)}: give the id")
    return found[0]


def _is_id(given: str) -> bool:
    return given.isascii() and given.isdigit() and len(given) <= _ID_DIGITS
