"""``switchboard agents``: programs, and the people who own them."""

from __future__ import annotations

import click

from ..ledger import add_agent, list_agents, list_endpoints, revoke_agent
from .chosen import chosen_agent, chosen_human, name_of_its_own
from .database import ledger_connection
from .output import as_row, json_option, write, write_json, write_records, write_table

_COLUMNS = ("id", "name", "owner", "created_at", "revoked_at")


@click.group()
def agents() -> None:
    """Look after the agents: programs that people own.

    What an agent may do is decided by the endpoints that are vended to it.

    \b
    Examples:
      switchboard agents add ci --owner ann@example.com
      switchboard agents list
      switchboard agents revoke ci
    """


@agents.command()
@click.argument("name", metavar="NAME", callback=name_of_its_own)
@click.option("--owner", metavar="ID|EMAIL", required=True, help="Who answers for it.")
@json_option
def add(name: str, owner: str, as_json: bool) -> None:
    """Add an agent of a person's.

    Its name is new among this person's agents that are not revoked. It can do nothing until an endpoint is vended
    to it.

    \b
    Examples:
      switchboard agents add ci --owner ann@example.com
      switchboard agents add ci --owner 1 --json
    """
    with ledger_connection("add agent") as connection:
        agent = add_agent(connection, owner_id=chosen_human(connection, owner).id, name=name)
    write_table([as_row(agent)], _COLUMNS[:-1], nothing="", as_json=as_json)


@agents.command("list")
@click.option("--owner", metavar="ID|EMAIL", help="Only agents of this person.")
@click.option("--all", "revoked", is_flag=True, help="Those revoked, too.")
@json_option
def list_(owner: str | None, revoked: bool, as_json: bool) -> None:
    """List the agents, by name.

    \b
    Examples:
      switchboard agents list --owner ann@example.com
      switchboard agents list --all --json
    """
    with ledger_connection("list agents") as connection:
        owner_id = None if owner is None else chosen_human(connection, owner).id
        found = list_agents(connection, owner_id=owner_id, revoked=revoked)
    columns = _COLUMNS if revoked else _COLUMNS[:-1]
    write_table([as_row(agent) for agent in found], columns, nothing="no agents", as_json=as_json)


@agents.command()
@click.argument("given", metavar="ID|NAME...", nargs=-1, required=True)
@json_option
def show(given: tuple[str, ...], as_json: bool) -> None:
    """Show agents with everything they have.

    A revoked one is known by its ID alone.

    \b
    Examples:
      switchboard agents show ci
      switchboard agents show 1 2 --json
    """
    with ledger_connection("show agents") as connection:
        found = [chosen_agent(connection, each) for each in given]
    write_records([as_row(agent) for agent in found], title="agent", as_json=as_json)


@agents.command()
@click.argument("given", metavar="ID|NAME")
@json_option
def revoke(given: str, as_json: bool) -> None:
    """Revoke an agent, for good.

    The credentials of all its endpoints are refused from the next request on. Its row stays, and its name is free
    again; todos that it made stay.

    \b
    Examples:
      switchboard agents revoke ci
      switchboard agents revoke 1 --json
    """
    with ledger_connection("revoke agent") as connection:
        agent = chosen_agent(connection, given)
        active = sum(endpoint.state == "active" for endpoint in list_endpoints(connection, agent_id=agent.id))
        revoked = revoke_agent(connection, agent.id)
    if as_json:
        write_json([as_row(revoked)])
    else:
        write(f"revoked agent {revoked.id}, {revoked.name} of {revoked.owner} (active endpoints: {active})\n")
