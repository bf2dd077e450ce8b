"""``switchboard endpoints``: what agents may do from outside, and the credentials they do it with."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import click
from pydantic import TypeAdapter, ValidationError

from ..adapter import Duration
from ..ledger import EndpointRow, Verb, list_endpoints, revoke_endpoint, rotate_endpoint, vend_endpoint
from .chosen import LONGEST_NAME, chosen_agent, chosen_endpoint, name_of_its_own
from .database import ledger_connection
from .options import nearest
from .output import as_row, json_option, write, write_json, write_records, write_table

VERBS: tuple[Verb, ...] = get_args(Verb)

#: No credential is vended for longer; for ever is to name no end.
LONGEST_LIFE = timedelta(days=36_500)

_COLUMNS = ("id", "agent", "name", "queues", "verbs", "state", "credential_prefix", "expires_at")


def _verbs(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[Verb, ...]:
    for verb in given:
        if verb not in VERBS:
            raise click.BadParameter(f"unknown verb {verb!r}{nearest(verb, VERBS) or f'; expected {VERBS[0]!r}'}")
    return tuple(verb for verb in VERBS if verb in given)


def _queues(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for queue in given:
        if not queue or len(queue) > LONGEST_NAME or not queue.isprintable():
            raise click.BadParameter(f"{queue!r}: expected a queue's name, 1 to {LONGEST_NAME} printable characters")
    return given


def _life(_context: click.Context, _parameter: click.Parameter, given: str | None) -> timedelta | None:
    if given is None:
        return None
    try:
        life: timedelta = TypeAdapter(Duration).validate_python(given)
    except ValidationError:
        raise click.BadParameter(f'{given!r}: expected a duration with its unit, such as "12h" or "90d"') from None
    if not timedelta(0) < life <= LONGEST_LIFE:
        raise click.BadParameter(f"{given!r}: expected more than nothing, and {LONGEST_LIFE.days}d at most")
    return life


@click.group()
def endpoints() -> None:
    """Vend endpoints to agents, and take them back.

    An endpoint is what an agent may do over HTTP: some verbs, in some queues. Its credential is shown once, when it is
    vended or rotated; the ledger keeps its SHA-256 and its first characters alone.

    \b
    Examples:
      switchboard endpoints vend ci deploys --queue deploys --queue builds --verb create
      switchboard endpoints list --agent ci
      switchboard endpoints rotate deploys
      switchboard endpoints revoke deploys
    """


@endpoints.command()
@click.argument("agent", metavar="AGENT")
@click.argument("name", metavar="NAME", callback=name_of_its_own)
@click.option(
    "--queue", "queues", multiple=True, required=True, callback=_queues, help="A queue that it may use; repeatable."
)
@click.option(
    "--verb",
    "verbs",
    metavar=f"[{'|'.join(VERBS)}]",
    multiple=True,
    required=True,
    callback=_verbs,
    help="What it may do there.",
)
@click.option("--expires-in", metavar="DURATION", callback=_life, help='How long it is in force: "12h", "90d" …')
@json_option
def vend(
    agent: str,
    name: str,
    queues: tuple[str, ...],
    verbs: tuple[Verb, ...],
    expires_in: timedelta | None,
    as_json: bool,
) -> None:
    """Vend an endpoint to an agent, and show its credential this once.

    AGENT is an ID or a NAME. Standard output has the credential and nothing else; with --json, the endpoint with its
    credential. NAME is new among the agent's endpoints that are not revoked.

    \b
    Examples:
      switchboard endpoints vend ci deploys --queue deploys --queue builds --verb create
      switchboard endpoints vend ci nightly --queue builds --verb create --expires-in 90d --json
    """
    with ledger_connection("vend endpoint") as connection:
        endpoint, credential = vend_endpoint(
            connection,
            agent_id=chosen_agent(connection, agent).id,
            name=name,
            queues=queues,
            verbs=verbs,
            expires_in=expires_in,
        )
    _show_once(endpoint, credential, as_json)


@endpoints.command("list")
@click.option("--agent", metavar="ID|NAME", help="Only endpoints of this agent.")
@click.option("--all", "revoked", is_flag=True, help="Those revoked, too.")
@json_option
def list_(agent: str | None, revoked: bool, as_json: bool) -> None:
    """List the endpoints, by their agents' names and their own.

    \b
    Examples:
      switchboard endpoints list --agent ci
      switchboard endpoints list --all --json
    """
    with ledger_connection("list endpoints") as connection:
        agent_id = None if agent is None else chosen_agent(connection, agent).id
        found = list_endpoints(connection, agent_id=agent_id, revoked=revoked)
    write_table([as_row(endpoint) for endpoint in found], _COLUMNS, nothing="no endpoints", as_json=as_json)


@endpoints.command()
@click.argument("given", metavar="ID|NAME...", nargs=-1, required=True)
@json_option
def show(given: tuple[str, ...], as_json: bool) -> None:
    """Show endpoints with everything but their credentials.

    A revoked one is known by its ID alone.

    \b
    Examples:
      switchboard endpoints show deploys
      switchboard endpoints show 1 2 --json
    """
    with ledger_connection("show endpoints") as connection:
        found = [chosen_endpoint(connection, each) for each in given]
    write_records([as_row(endpoint) for endpoint in found], title="endpoint", as_json=as_json)


@endpoints.command()
@click.argument("given", metavar="ID|NAME")
@json_option
def rotate(given: str, as_json: bool) -> None:
    """Give an endpoint a new credential, and show it this once.

    The old one is refused from the next request on; when the endpoint ends stays as it was. Output as of vend.

    \b
    Examples:
      switchboard endpoints rotate deploys
      switchboard endpoints rotate 1 --json
    """
    with ledger_connection("rotate endpoint") as connection:
        endpoint, credential = rotate_endpoint(connection, chosen_endpoint(connection, given).id)
    _show_once(endpoint, credential, as_json)


@endpoints.command()
@click.argument("given", metavar="ID|NAME...", nargs=-1, required=True)
@json_option
def revoke(given: tuple[str, ...], as_json: bool) -> None:
    """Revoke endpoints, for good.

    Their credentials are refused from the next request on. All of the named, or none where one is unknown or revoked
    already. Their rows stay, and their names are free again; todos that they made stay.

    \b
    Examples:
      switchboard endpoints revoke deploys
      switchboard endpoints revoke 1 2 --json
    """
    with ledger_connection("revoke endpoints") as connection:
        # In the order of their ids, so that two such commands never wait for each other.
        ids = sorted({chosen_endpoint(connection, each).id for each in given})
        revoked = [revoke_endpoint(connection, endpoint_id) for endpoint_id in ids]
    write_table([as_row(endpoint) for endpoint in revoked], _COLUMNS, nothing="", as_json=as_json)


def _show_once(endpoint: EndpointRow, credential: str, as_json: bool) -> None:
    if as_json:
        write_json([as_row(endpoint) | {"credential": credential}])
    else:
        write(f"{credential}\n")
        click.echo(f"endpoint {endpoint.id}, {endpoint.name} of {endpoint.agent}: not shown again", err=True)
