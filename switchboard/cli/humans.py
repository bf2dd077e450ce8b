"""``switchboard humans``: the people who answer for agents."""

from __future__ import annotations

import re

import click

from ..ledger import Belongings, HumanRow, add_human, belongings, list_humans, remove_human
from .chosen import chosen_human
from .database import ledger_connection
from .output import as_row, json_option, write, write_json, write_records, write_table

_COLUMNS = ("id", "email", "display_name", "created_at")

#: Whether it is deliverable only its mail server knows; this finds a name where an address should be.
_ADDRESS = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")


def _address(_context: click.Context, _parameter: click.Parameter, email: str) -> str:
    if not _ADDRESS.fullmatch(email) or not email.isprintable():
        raise click.BadParameter(f"{email!r}: expected an address such as ann@example.com")
    return email


@click.group()
def humans() -> None:
    """Look after the people who own agents.

    \b
    Examples:
      switchboard humans add ann@example.com --name 'Ann Bell'
      switchboard humans list
      switchboard humans remove ann@example.com --yes
    """


@humans.command()
@click.argument("email", metavar="EMAIL", callback=_address)
@click.option("--name", "display_name", metavar="NAME", default="", help="How to call them.")
@json_option
def add(email: str, display_name: str, as_json: bool) -> None:
    """Add a person, who can then own agents.

    The address is kept in lower case.

    \b
    Examples:
      switchboard humans add ann@example.com
      switchboard humans add ann@example.com --name 'Ann Bell' --json
    """
    with ledger_connection("add human") as connection:
        human = add_human(connection, email=email, display_name=display_name)
    write_table([as_row(human)], _COLUMNS, nothing="", as_json=as_json)


@humans.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List everybody, by address.

    \b
    Examples:
      switchboard humans list
      switchboard humans list --json
    """
    with ledger_connection("list humans") as connection:
        found = list_humans(connection)
    write_table(
        [as_row(human) for human in found], _COLUMNS, nothing="no humans", as_json=as_json, free_text=("display_name",)
    )


@humans.command()
@click.argument("given", metavar="ID|EMAIL...", nargs=-1, required=True)
@json_option
def show(given: tuple[str, ...], as_json: bool) -> None:
    """Show people, and how much each has.

    Agents, endpoints and sessions are counted with those that are revoked or have expired.

    \b
    Examples:
      switchboard humans show ann@example.com
      switchboard humans show 1 2 --json
    """
    with ledger_connection("show humans") as connection:
        found = [chosen_human(connection, each) for each in given]
        rows = [as_row(human) | as_row(belongings(connection, human.id)) for human in found]
    write_records(rows, title="human", as_json=as_json)


@humans.command()
@click.argument("given", metavar="ID|EMAIL")
@click.option("--yes", is_flag=True, help="Do it: what is deleted cannot be had again.")
@json_option
def remove(given: str, yes: bool, as_json: bool) -> None:
    """Delete a person with their agents, endpoints and sessions.

    Their credentials are refused from the next request on. Todos that their agents made stay. Without --yes it only
    says what would go.

    \b
    Examples:
      switchboard humans remove ann@example.com
      switchboard humans remove ann@example.com --yes
    """
    with ledger_connection("remove human") as connection:
        human = chosen_human(connection, given)
        theirs = belongings(connection, human.id)
        if not yes:
            raise click.UsageError(f"this deletes {_told(human, theirs)}; --yes does it")
        remove_human(connection, human.id)
    if as_json:
        write_json([as_row(human) | as_row(theirs)])
    else:
        write(f"deleted {_told(human, theirs)}\n")


def _told(human: HumanRow, theirs: Belongings) -> str:
    return f"{human.email} (agents: {theirs.agents}, endpoints: {theirs.endpoints}, sessions: {theirs.sessions})"
