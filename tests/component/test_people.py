"""People and their agents in the ledger: names that are unique, owners, and what goes with whom."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from importlib import resources
from pathlib import Path

import psycopg
import pytest

from switchboard.errors import Conflict, CredentialInvalid, LedgerError, NotFound
from switchboard.ledger import (
    Belongings,
    Connection,
    Ledger,
    add_agent,
    add_human,
    authenticate_endpoint,
    authenticate_session,
    begin_session,
    belongings,
    find_human,
    get_agent,
    get_endpoint,
    get_human,
    list_agents,
    list_humans,
    migrate,
    remove_human,
    revoke_agent,
    vend_endpoint,
)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A migrated database; each statement commits."""
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with Connection.connect(database_url, autocommit=True) as connection:
        yield connection


def count(connection: Connection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert row
    return int(row[0])


# People


def test_a_person_is_added_and_found_by_id_and_by_address(connection: Connection) -> None:
    ann = add_human(connection, email="ann@example.com", display_name="Ann Bell")
    assert (ann.email, ann.display_name) == ("ann@example.com", "Ann Bell")
    assert get_human(connection, ann.id) == find_human(connection, "ann@example.com") == ann


def test_an_address_is_one_person_however_it_is_typed(connection: Connection) -> None:
    ann = add_human(connection, email="Ann@Example.com")
    assert ann.email == "ann@example.com"
    assert find_human(connection, "ANN@example.com") == ann
    with pytest.raises(Conflict, match=r"there is a human ANN@example\.com already"):
        add_human(connection, email="ANN@example.com")
    assert count(connection, "humans") == 1


def test_people_are_listed_by_address(connection: Connection) -> None:
    for email in ("cid@example.com", "ann@example.com", "bob@example.com"):
        add_human(connection, email=email)
    assert [human.email for human in list_humans(connection)] == [
        "ann@example.com",
        "bob@example.com",
        "cid@example.com",
    ]


def test_who_is_not_there_is_not_found(connection: Connection) -> None:
    with pytest.raises(NotFound, match="no human 4711"):
        get_human(connection, 4711)
    with pytest.raises(NotFound, match=r"no human zoe@example\.com"):
        find_human(connection, "zoe@example.com")
    with pytest.raises(NotFound, match="no human 4711"):
        belongings(connection, 4711)
    with pytest.raises(NotFound, match="no human 4711"):
        remove_human(connection, 4711)


def test_removing_a_person_takes_all_that_is_theirs_and_nothing_of_others(connection: Connection) -> None:
    # Given two people, each with an agent, an endpoint and a session
    held = {}
    for email in ("ann@example.com", "bob@example.com"):
        human = add_human(connection, email=email)
        agent = add_agent(connection, owner_id=human.id, name="ci")
        _, credential = vend_endpoint(connection, agent_id=agent.id, name="d", queues=["deploys"], verbs=["create"])
        _, token = begin_session(connection, human.id, lifetime=timedelta(hours=1))
        held[email] = human, credential, token
    ann, credential, token = held["ann@example.com"]
    assert belongings(connection, ann.id) == Belongings(agents=1, endpoints=1, sessions=1)

    # When one of them is removed
    remove_human(connection, ann.id)

    # Then their credentials are refused at once, and the other's are not
    with pytest.raises(CredentialInvalid):
        authenticate_endpoint(connection, credential)
    with pytest.raises(CredentialInvalid):
        authenticate_session(connection, token)
    bob, credential, token = held["bob@example.com"]
    assert authenticate_endpoint(connection, credential).may("deploys", "create")
    assert authenticate_session(connection, token).human_id == bob.id
    assert list_humans(connection) == [bob]
    assert {table: count(connection, table) for table in ("agents", "endpoints", "sessions")} == {
        "agents": 1,
        "endpoints": 1,
        "sessions": 1,
    }


# Agents


def test_an_agent_is_owned_by_a_person(connection: Connection) -> None:
    ann = add_human(connection, email="ann@example.com")
    agent = add_agent(connection, owner_id=ann.id, name="ci")
    assert (agent.owner_id, agent.owner, agent.name, agent.revoked_at) == (ann.id, "ann@example.com", "ci", None)
    assert get_agent(connection, agent.id) == agent
    with pytest.raises(NotFound, match="no human 4711"):
        add_agent(connection, owner_id=4711, name="ci")
    with pytest.raises(NotFound, match="no agent 4711"):
        get_agent(connection, 4711)


def test_an_agents_name_is_unique_to_its_owner_until_it_is_revoked(connection: Connection) -> None:
    ann = add_human(connection, email="ann@example.com")
    bob = add_human(connection, email="bob@example.com")
    first = add_agent(connection, owner_id=ann.id, name="ci")
    others = add_agent(connection, owner_id=bob.id, name="ci")
    with pytest.raises(Conflict, match=r"ann@example\.com has an agent ci already"):
        add_agent(connection, owner_id=ann.id, name="ci")

    revoke_agent(connection, first.id)
    second = add_agent(connection, owner_id=ann.id, name="ci")
    assert list_agents(connection) == [others, second]
    assert list_agents(connection, owner_id=ann.id) == [second]
    assert [agent.id for agent in list_agents(connection, owner_id=ann.id, revoked=True)] == [first.id, second.id]


def test_an_agent_is_revoked_once(connection: Connection) -> None:
    ann = add_human(connection, email="ann@example.com")
    agent = add_agent(connection, owner_id=ann.id, name="ci")
    assert revoke_agent(connection, agent.id).revoked_at is not None
    with pytest.raises(Conflict, match=f"agent {agent.id} is already revoked"):
        revoke_agent(connection, agent.id)
    with pytest.raises(NotFound, match="no agent 4711"):
        revoke_agent(connection, 4711)


# The migration


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The migrations as they were before people could be added."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    with resources.as_file(resources.files("switchboard") / "migrations") as shipped:
        for file in sorted(shipped.glob("000[123]_*.sql")):
            shutil.copy(file, folder)
    return folder


def test_rows_from_before_are_kept_and_can_do_nothing_until_they_are_vended_anew(
    database_url: str, before: Path
) -> None:
    # Given a database as it was before, with rows in these tables
    with closing(Ledger(database_url)) as ledger:
        assert [version[:4] for version in migrate(ledger, before)] == ["0001", "0002", "0003"]
        with psycopg.connect(database_url) as old:
            old.execute("INSERT INTO humans (email, display_name) VALUES ('Ann@example.com', 'Ann')")
            old.execute("INSERT INTO sessions (human_id, token_hash, expires_at) VALUES (1, '\\x01', 'infinity')")
            old.execute(
                "INSERT INTO agents (owner_id, name, token_hash, token_prefix, scopes) "
                "VALUES (1, 'ci', '\\x02', 'x', '{a}'), (1, 'cd', '\\x03', 'y', '{}')"
            )
            old.execute(
                "INSERT INTO endpoints (agent_id, name, queue, scopes, credential_hash, credential_prefix) "
                "VALUES (1, 'e', 'deploys', '{b}', '\\x04', 'z'), (2, 'e', 'builds', '{}', '\\x05', 'z')"
            )

        # When it is migrated
        assert "0006_credentials" in migrate(ledger)

    # Then the rows are there, and the endpoints' queues with them, without a verb
    with Connection.connect(database_url, autocommit=True) as connection:
        assert {table: count(connection, table) for table in ("humans", "sessions", "agents", "endpoints")} == {
            "humans": 1,
            "sessions": 1,
            "agents": 2,
            "endpoints": 2,
        }
        ann = find_human(connection, "ann@example.com")
        assert (ann.email, ann.display_name) == ("ann@example.com", "Ann")
        with pytest.raises(Conflict, match=r"there is a human ann@example\.com already"):
            add_human(connection, email="ann@example.com")
        assert [agent.name for agent in list_agents(connection)] == ["cd", "ci"]
        endpoint = get_endpoint(connection, 1)
        assert (endpoint.name, endpoint.queues, endpoint.verbs, endpoint.state) == ("e", ["deploys"], [], "active")
        assert not endpoint.may("deploys", "create")


def test_addresses_that_differ_in_case_alone_are_named_before_anything_is_changed(
    database_url: str, before: Path
) -> None:
    # Given two rows of one address
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger, before)
        with psycopg.connect(database_url, autocommit=True) as old:
            old.execute(
                "INSERT INTO humans (email) VALUES ('Ann@example.com'), ('bob@example.com'), ('ann@Example.com')"
            )
            # When it is migrated, then it says which they are
            with pytest.raises(
                LedgerError, match=r"0006_credentials.*: Ann@example\.com \(id 1\), ann@Example\.com \(id 3\)"
            ):
                migrate(ledger)
            assert old.execute("SELECT email FROM humans ORDER BY id").fetchall() == [
                ("Ann@example.com",),
                ("bob@example.com",),
                ("ann@Example.com",),
            ]
            # And once one of them has gone, it goes on
            old.execute("DELETE FROM humans WHERE id = 3")
            assert "0006_credentials" in migrate(ledger)
            assert old.execute("SELECT email FROM humans ORDER BY id").fetchall() == [
                ("ann@example.com",),
                ("bob@example.com",),
            ]
            # Whoever writes there: an address is one person
            with pytest.raises(psycopg.errors.UniqueViolation):
                old.execute("INSERT INTO humans (email) VALUES ('ANN@example.com')")
