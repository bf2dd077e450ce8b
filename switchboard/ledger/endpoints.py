"""Table ``endpoints``: what an agent may do from outside, and the credential it shows for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from psycopg import sql
from psycopg.rows import class_row

from ..errors import Conflict, NotFound
from .agents import get_agent
from .connection import Connection, within
from .credentials import digest_of, mint, refusal, same

#: What an endpoint may be vended for: "create" is to make todos.
Verb = Literal["create"]

EndpointState = Literal["active", "expired", "revoked"]

# The state is decided here alone, by the time of the statement: a transaction may have begun before the end came.
_COLUMNS = sql.SQL("""
    e.id, e.agent_id, a.name AS agent, e.name, e.queues, e.verbs, e.credential_prefix, e.created_at, e.expires_at,
    least(e.revoked_at, a.revoked_at) AS revoked_at,
    CASE WHEN e.revoked_at IS NOT NULL OR a.revoked_at IS NOT NULL THEN 'revoked'
         WHEN e.expires_at <= statement_timestamp() THEN 'expired' ELSE 'active' END AS state
""")

_VEND = sql.SQL("""
WITH e AS (
    INSERT INTO endpoints (agent_id, name, queues, verbs, expires_at, credential_hash, credential_prefix)
    VALUES (%s, %s, %s, %s, now() + %s, %s, %s)
    ON CONFLICT (agent_id, name) WHERE revoked_at IS NULL DO NOTHING RETURNING *)
SELECT {} FROM e JOIN agents a ON a.id = e.agent_id
""").format(_COLUMNS)

_GET = sql.SQL("SELECT {} FROM endpoints e JOIN agents a ON a.id = e.agent_id WHERE e.id = %s").format(_COLUMNS)

_BY_HASH = sql.SQL("""
SELECT e.credential_hash, {} FROM endpoints e JOIN agents a ON a.id = e.agent_id WHERE e.credential_hash = %s
""").format(_COLUMNS)

_LIST = sql.SQL("""
SELECT {} FROM endpoints e JOIN agents a ON a.id = e.agent_id
WHERE (%(agent_id)s::bigint IS NULL OR e.agent_id = %(agent_id)s)
  AND (%(revoked)s OR (e.revoked_at IS NULL AND a.revoked_at IS NULL))
ORDER BY a.name, e.name, e.id
""").format(_COLUMNS)

_ROTATE = sql.SQL("""
WITH e AS (
    UPDATE endpoints SET credential_hash = %s, credential_prefix = %s
    WHERE id = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp())
      AND agent_id IN (SELECT id FROM agents WHERE revoked_at IS NULL)
    RETURNING *)
SELECT {} FROM e JOIN agents a ON a.id = e.agent_id
""").format(_COLUMNS)

_REVOKE = sql.SQL("""
WITH e AS (UPDATE endpoints SET revoked_at = now() WHERE id = %s AND revoked_at IS NULL RETURNING *)
SELECT {} FROM e JOIN agents a ON a.id = e.agent_id
""").format(_COLUMNS)


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as its row is, with its agent's name; of its credential the first characters alone."""

    id: int
    agent_id: int
    agent: str
    name: str
    queues: list[str]
    verbs: list[str]
    credential_prefix: str
    created_at: datetime
    expires_at: datetime | None
    #: When it, or its agent, was revoked: whichever came first.
    revoked_at: datetime | None
    #: As of when it was read.
    state: EndpointState

    def may(self, queue: str, verb: Verb) -> bool:
        """Whether it is in force, and was vended for this verb and this very queue."""
        return self.state == "active" and verb in self.verbs and queue in self.queues


def vend_endpoint(
    connection: Connection,
    *,
    agent_id: int,
    name: str,
    queues: Sequence[str],
    verbs: Sequence[Verb],
    expires_in: timedelta | None = None,
    timeout: timedelta | None = None,
) -> tuple[EndpointRow, str]:
    """Makes an endpoint of this agent's and returns it with its credential, which can never be had again.

    Raises ``NotFound`` where there is no such agent, and ``Conflict`` where it is revoked, or has an endpoint of this
    name that is not.
    """
    agent = get_agent(connection, agent_id, timeout=timeout)
    if agent.revoked_at is not None:
        raise Conflict(f"agent {agent.name} is revoked: it can be vended nothing")
    minted = mint("endpoint")
    values = (
        agent_id,
        name,
        list(dict.fromkeys(queues)),
        list(dict.fromkeys(verbs)),
        expires_in,
        minted.digest,
        minted.prefix,
    )
    with within(connection, timeout, "vend endpoint"), connection.cursor(row_factory=class_row(EndpointRow)) as cursor:
        row = cursor.execute(_VEND, values).fetchone()
    if row is None:
        raise Conflict(f"agent {agent.name} has an endpoint {name} already: rotate it, or revoke it first")
    return row, minted.plaintext


def authenticate_endpoint(connection: Connection, credential: str, *, timeout: timedelta | None = None) -> EndpointRow:
    """The endpoint whose credential this is; ask its ``may`` for what it may do.

    Raises ``CredentialInvalid`` for any other text, and where the endpoint has expired or it or its agent is revoked,
    never saying which. Call it in the transaction that then acts: a revocation holds from the next call after its
    commit. A text that has not the form of a credential costs no query.
    """
    digest = digest_of("endpoint", credential)
    with within(connection, timeout, "authenticate endpoint"):
        row = connection.execute(_BY_HASH, (digest,)).fetchone()
    if row is None or not same(digest, row[0]):
        raise refusal("endpoint")
    endpoint = EndpointRow(*row[1:])
    if endpoint.state != "active":
        raise refusal("endpoint")
    return endpoint


def get_endpoint(connection: Connection, endpoint_id: int, *, timeout: timedelta | None = None) -> EndpointRow:
    """The endpoint with that id; ``NotFound`` where there is none."""
    with within(connection, timeout, "get endpoint"), connection.cursor(row_factory=class_row(EndpointRow)) as cursor:
        row = cursor.execute(_GET, (endpoint_id,)).fetchone()
    if row is None:
        raise NotFound(f"no endpoint {endpoint_id}")
    return row


def list_endpoints(
    connection: Connection,
    *,
    agent_id: int | None = None,
    revoked: bool = False,
    timeout: timedelta | None = None,
) -> list[EndpointRow]:
    """The endpoints of this agent, or of all, by their agents' names and their own.

    Those that are revoked, or whose agent is, only where ``revoked``; those that have expired always.
    """
    with within(connection, timeout, "list endpoints"), connection.cursor(row_factory=class_row(EndpointRow)) as cursor:
        return cursor.execute(_LIST, {"agent_id": agent_id, "revoked": revoked}).fetchall()


def rotate_endpoint(
    connection: Connection, endpoint_id: int, *, timeout: timedelta | None = None
) -> tuple[EndpointRow, str]:
    """Gives the endpoint a new credential and returns both: the old one is refused from the commit on.

    Raises ``NotFound`` where there is none, and ``Conflict`` where it is not in force.
    """
    minted = mint("endpoint")
    with (
        within(connection, timeout, "rotate endpoint"),
        connection.cursor(row_factory=class_row(EndpointRow)) as cursor,
    ):
        row = cursor.execute(_ROTATE, (minted.digest, minted.prefix, endpoint_id)).fetchone()
    if row is None:
        known = get_endpoint(connection, endpoint_id, timeout=timeout)
        raise Conflict(f"endpoint {endpoint_id} is {known.state}: vend another")
    return row, minted.plaintext


def revoke_endpoint(connection: Connection, endpoint_id: int, *, timeout: timedelta | None = None) -> EndpointRow:
    """Ends an endpoint: its credential is refused from the commit on.

    Raises ``NotFound`` where there is none, and ``Conflict`` where it is revoked already.
    """
    with (
        within(connection, timeout, "revoke endpoint"),
        connection.cursor(row_factory=class_row(EndpointRow)) as cursor,
    ):
        row = cursor.execute(_REVOKE, (endpoint_id,)).fetchone()
    if row is None:
        get_endpoint(connection, endpoint_id, timeout=timeout)
        raise Conflict(f"endpoint {endpoint_id} is already revoked")
    return row
