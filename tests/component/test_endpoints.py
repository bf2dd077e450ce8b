"""Endpoints and their credentials: whom they let in, for what, and until when."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import cast

import psycopg
import pytest
from waiting import eventually

from switchboard.errors import Conflict, CredentialInvalid, LedgerError, LedgerUnavailable, NotFound
from switchboard.ledger import (
    AgentRow,
    Connection,
    EndpointRow,
    Ledger,
    Verb,
    add_agent,
    add_human,
    authenticate_endpoint,
    begin_session,
    get_endpoint,
    list_endpoints,
    migrate,
    revoke_agent,
    revoke_endpoint,
    rotate_endpoint,
    vend_endpoint,
)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A migrated database; each statement commits."""
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with Connection.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def agent(connection: Connection) -> AgentRow:
    human = add_human(connection, email="ann@example.com")
    return add_agent(connection, owner_id=human.id, name="ci")


def vend(
    connection: Connection, agent: AgentRow, name: str = "deploys", expires_in: timedelta | None = None
) -> tuple[EndpointRow, str]:
    return vend_endpoint(
        connection, agent_id=agent.id, name=name, queues=["deploys", "builds"], verbs=["create"], expires_in=expires_in
    )


def expire(connection: Connection, endpoint: EndpointRow) -> None:
    connection.execute("UPDATE endpoints SET expires_at = now() - interval '1 ms' WHERE id = %s", (endpoint.id,))


def set_clock(connection: Connection, ahead: timedelta) -> None:
    """Sets this session's clock so far ahead of the machine's: its functions are found before PostgreSQL's own."""
    connection.execute("CREATE SCHEMA IF NOT EXISTS clock")
    for name in ("now", "statement_timestamp", "clock_timestamp", "transaction_timestamp"):
        connection.execute(
            f"CREATE OR REPLACE FUNCTION clock.{name}() RETURNS timestamptz STABLE LANGUAGE sql AS "
            f"$$ SELECT pg_catalog.{name}() + interval '{ahead.total_seconds()} s' $$".encode()
        )
    connection.execute("SET search_path = clock, pg_catalog, public")


def refused(connection: Connection, credential: str) -> bool:
    """Whether it is refused, with the words that say nothing of why."""
    try:
        authenticate_endpoint(connection, credential)
    except CredentialInvalid as error:
        return str(error) == "no endpoint in force has this credential"
    return False


def dump(connection: Connection) -> str:
    """Every column of every table as text."""
    tables = connection.execute(
        "SELECT format('%I.%I', schemaname, relname) FROM pg_stat_user_tables ORDER BY 1"
    ).fetchall()
    return "\n".join(
        str(row[0]) for (table,) in tables for row in connection.execute(f"SELECT t::text FROM {table} t".encode())
    )


# Vending


def test_a_vended_credential_opens_its_endpoint(connection: Connection, agent: AgentRow) -> None:
    endpoint, credential = vend(connection, agent)
    assert authenticate_endpoint(connection, credential) == endpoint == get_endpoint(connection, endpoint.id)
    assert (endpoint.agent_id, endpoint.agent, endpoint.name) == (agent.id, "ci", "deploys")
    assert (endpoint.state, endpoint.expires_at, endpoint.revoked_at) == ("active", None, None)


def test_an_endpoint_may_do_what_it_was_vended_for_and_nothing_else(connection: Connection, agent: AgentRow) -> None:
    _, credential = vend(connection, agent)
    endpoint = authenticate_endpoint(connection, credential)
    assert endpoint.may("deploys", "create")
    assert endpoint.may("builds", "create")
    for queue in ("", "Deploys", "deploys ", "deploy", "deploys,builds", "%", "audit"):
        assert not endpoint.may(queue, "create"), queue
    for verb in ("", "claim", "CREATE"):
        assert not endpoint.may("deploys", cast("Verb", verb)), verb


def test_no_table_holds_a_credential_or_its_secret(connection: Connection, agent: AgentRow) -> None:
    endpoint, first = vend(connection, agent)
    _, second = rotate_endpoint(connection, endpoint.id)
    _, third = vend(connection, agent, "another")
    _, token = begin_session(connection, agent.owner_id, lifetime=timedelta(hours=1))

    dumped = dump(connection)
    assert "ann@example.com" in dumped
    assert get_endpoint(connection, endpoint.id).credential_prefix in dumped
    for plaintext in (first, second, third, token):
        secret = plaintext[13:]
        for form in (secret, secret.encode().hex()):
            assert form not in dumped


def test_an_endpoint_has_a_name_of_its_own_until_it_is_revoked(connection: Connection, agent: AgentRow) -> None:
    first, credential = vend(connection, agent)
    other_agent = add_agent(connection, owner_id=agent.owner_id, name="cd")
    with pytest.raises(Conflict, match="agent ci has an endpoint deploys already"):
        vend(connection, agent)
    assert not refused(connection, credential)
    assert vend(connection, other_agent)[0].name == "deploys"

    revoke_endpoint(connection, first.id)
    second, _ = vend(connection, agent)
    assert list_endpoints(connection, agent_id=agent.id) == [second]
    assert [each.id for each in list_endpoints(connection, agent_id=agent.id, revoked=True)] == [first.id, second.id]
    assert [each.agent for each in list_endpoints(connection)] == ["cd", "ci"]


def test_of_two_that_vend_one_name_at_once_one_conflicts(
    connection: Connection, agent: AgentRow, database_url: str
) -> None:
    # Given one whose transaction is open
    with ThreadPoolExecutor(1) as thread, Connection.connect(database_url, autocommit=True) as second:
        with connection.transaction():
            _, credential = vend(connection, agent)

            # When another comes, and the first commits
            later = thread.submit(vend, second, agent)
            with psycopg.connect(database_url, autocommit=True) as watching:
                waiting = (
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
                eventually(lambda: watching.execute(waiting).fetchone(), what="the second waits for the first")

        # Then the second is told, and the first's stands
        with pytest.raises(Conflict, match="has an endpoint deploys already"):
            later.result(timeout=60)
    assert not refused(connection, credential)


def test_nothing_is_vended_to_an_agent_that_is_revoked_or_not_there(connection: Connection, agent: AgentRow) -> None:
    revoke_agent(connection, agent.id)
    with pytest.raises(Conflict, match="agent ci is revoked"):
        vend(connection, agent)
    with pytest.raises(NotFound, match="no agent 4711"):
        vend_endpoint(connection, agent_id=4711, name="e", queues=["q"], verbs=["create"])
    assert list_endpoints(connection, revoked=True) == []


def test_the_ledger_knows_no_verb_but_its_own(connection: Connection, agent: AgentRow) -> None:
    verbs = [cast("Verb", "claim")]
    with pytest.raises(LedgerError, match=r"^vend endpoint: .*verbs"):
        vend_endpoint(connection, agent_id=agent.id, name="e", queues=["q"], verbs=verbs)
    assert list_endpoints(connection) == []


# Who is refused


def test_a_credential_with_one_character_changed_is_refused(connection: Connection, agent: AgentRow) -> None:
    _, credential = vend(connection, agent)
    for place, character in enumerate(credential):
        changed = credential[:place] + ("b" if character == "a" else "a") + credential[place + 1 :]
        assert refused(connection, changed), place
        swapped = credential[:place] + character.swapcase() + credential[place + 1 :]
        assert swapped == credential or refused(connection, swapped), place
    assert not refused(connection, credential)


def test_a_hash_or_a_prefix_is_no_credential(connection: Connection, agent: AgentRow) -> None:
    endpoint, _ = vend(connection, agent)
    row = connection.execute("SELECT credential_hash FROM endpoints").fetchone()
    assert row
    for text in (endpoint.credential_prefix, row[0].hex(), f"swb_{row[0].hex()[:43]}", "swb_" + "%" * 43):
        assert refused(connection, text)


def test_a_session_token_is_no_endpoints_credential(connection: Connection, agent: AgentRow) -> None:
    _, token = begin_session(connection, agent.owner_id, lifetime=timedelta(hours=1))
    assert refused(connection, token)
    assert refused(connection, token.replace("swbs_", "swb_"))


def test_a_text_that_has_not_the_form_of_one_costs_no_query(connection: Connection, agent: AgentRow) -> None:
    _, credential = vend(connection, agent)
    connection.close()
    odd = ["", "x", f"{credential}\x00", f"{credential} ", f"é{credential[1:]}", "\ud800", credential * 1_000_000]
    for text in odd:
        assert refused(connection, text)
    # With the form of one it is looked up, here in vain.
    with pytest.raises(LedgerUnavailable):
        authenticate_endpoint(connection, credential)


def test_each_credential_opens_its_own_endpoint_alone(connection: Connection, agent: AgentRow) -> None:
    vended = [vend(connection, agent, f"endpoint-{number}") for number in range(5)]
    for endpoint, credential in vended:
        assert authenticate_endpoint(connection, credential).id == endpoint.id
    revoke_endpoint(connection, vended[2][0].id)
    assert [refused(connection, credential) for _, credential in vended] == [False, False, True, False, False]


def test_a_revoked_endpoint_is_refused_by_whoever_looks_next(
    connection: Connection, agent: AgentRow, database_url: str
) -> None:
    endpoint, credential = vend(connection, agent)
    with Connection.connect(database_url) as elsewhere:
        assert not refused(elsewhere, credential)
        revoked = revoke_endpoint(connection, endpoint.id)
        # Even in a transaction that is open already.
        assert refused(elsewhere, credential)
    assert (revoked.state, revoked.may("deploys", "create")) == ("revoked", False)
    with pytest.raises(Conflict, match=f"endpoint {endpoint.id} is already revoked"):
        revoke_endpoint(connection, endpoint.id)
    with pytest.raises(NotFound, match="no endpoint 4711"):
        revoke_endpoint(connection, 4711)


def test_a_revoked_agents_endpoints_are_all_refused(connection: Connection, agent: AgentRow) -> None:
    credentials = [vend(connection, agent, name)[1] for name in ("deploys", "builds")]
    another = add_agent(connection, owner_id=agent.owner_id, name="cd")
    _, others = vend(connection, another)

    revoked = revoke_agent(connection, agent.id)
    assert all(refused(connection, credential) for credential in credentials)
    assert not refused(connection, others)
    shown = list_endpoints(connection, agent_id=agent.id, revoked=True)
    assert [(each.state, each.revoked_at) for each in shown] == [("revoked", revoked.revoked_at)] * 2
    assert list_endpoints(connection, agent_id=agent.id) == []


def test_an_endpoint_ends_by_the_databases_clock(connection: Connection, agent: AgentRow) -> None:
    endpoint, credential = vend(connection, agent, expires_in=timedelta(days=90))
    assert endpoint.expires_at == endpoint.created_at + timedelta(days=90)
    assert not refused(connection, credential)

    # By this process's clock it has ended, and by the database's, a day behind, it has not.
    expire(connection, endpoint)
    set_clock(connection, timedelta(days=-1))
    assert authenticate_endpoint(connection, credential).may("deploys", "create")
    assert [each.state for each in list_endpoints(connection)] == ["active"]

    # Three months on by the database's clock it has, whatever this process's says.
    connection.execute("UPDATE endpoints SET expires_at = created_at + interval '90 days'")
    set_clock(connection, timedelta(days=91))
    assert refused(connection, credential)
    [listed] = list_endpoints(connection)
    assert (listed.state, listed.may("deploys", "create")) == ("expired", False)
    with pytest.raises(Conflict, match=f"endpoint {endpoint.id} is expired"):
        rotate_endpoint(connection, endpoint.id)


# Rotation


def test_rotating_gives_a_new_credential_and_the_old_one_is_refused(connection: Connection, agent: AgentRow) -> None:
    endpoint, old = vend(connection, agent, expires_in=timedelta(days=90))
    rotated, new = rotate_endpoint(connection, endpoint.id)
    assert refused(connection, old)
    assert authenticate_endpoint(connection, new) == rotated
    assert (rotated.id, rotated.queues, rotated.expires_at) == (endpoint.id, endpoint.queues, endpoint.expires_at)
    assert new.startswith(rotated.credential_prefix)


def test_what_is_not_in_force_is_not_rotated(connection: Connection, agent: AgentRow) -> None:
    expired, _ = vend(connection, agent, "expired")
    revoked, _ = vend(connection, agent, "revoked")
    orphaned, _ = vend(connection, agent, "orphaned")
    expire(connection, expired)
    revoke_endpoint(connection, revoked.id)
    with pytest.raises(Conflict, match=f"endpoint {expired.id} is expired"):
        rotate_endpoint(connection, expired.id)
    with pytest.raises(Conflict, match=f"endpoint {revoked.id} is revoked"):
        rotate_endpoint(connection, revoked.id)
    revoke_agent(connection, agent.id)
    with pytest.raises(Conflict, match=f"endpoint {orphaned.id} is revoked"):
        rotate_endpoint(connection, orphaned.id)
    with pytest.raises(NotFound, match="no endpoint 4711"):
        rotate_endpoint(connection, 4711)


# What is said


def test_no_log_and_no_representation_holds_a_credential(
    connection: Connection, agent: AgentRow, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        endpoint, credential = vend(connection, agent)
        shown = [repr(authenticate_endpoint(connection, credential))]
        revoke_endpoint(connection, endpoint.id)
        assert refused(connection, credential)
        connection.close()
        with pytest.raises(LedgerUnavailable) as away:
            authenticate_endpoint(connection, credential)
        shown += [str(away.value), repr(endpoint), caplog.text]
    assert not any(credential[12:] in text for text in shown)
