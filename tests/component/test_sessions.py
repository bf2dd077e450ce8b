"""Sessions in the ledger: a token that lets one person in, for a while."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from switchboard.errors import CredentialInvalid, LedgerError, NotFound
from switchboard.ledger import (
    Connection,
    HumanRow,
    Ledger,
    add_human,
    authenticate_session,
    begin_session,
    end_session,
    migrate,
)

HOUR = timedelta(hours=1)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A migrated database; each statement commits."""
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with Connection.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def ann(connection: Connection) -> HumanRow:
    return add_human(connection, email="ann@example.com")


def refused(connection: Connection, token: str) -> bool:
    """Whether it is refused, with the words that say nothing of why."""
    try:
        authenticate_session(connection, token)
    except CredentialInvalid as error:
        return str(error) == "no session in force has this credential"
    return False


def test_a_session_is_found_by_its_token(connection: Connection, ann: HumanRow) -> None:
    session, token = begin_session(connection, ann.id, lifetime=HOUR, source_ip="2001:db8::1", user_agent="curl/8")
    assert authenticate_session(connection, token) == session
    assert (session.human_id, session.source_ip, session.user_agent) == (ann.id, "2001:db8::1", "curl/8")
    assert session.expires_at == session.created_at + HOUR


def test_a_session_that_has_ended_or_expired_is_refused(connection: Connection, ann: HumanRow) -> None:
    ended, first = begin_session(connection, ann.id, lifetime=HOUR)
    expired, second = begin_session(connection, ann.id, lifetime=HOUR)
    _, third = begin_session(connection, ann.id, lifetime=HOUR)
    end_session(connection, ended.id)
    connection.execute("UPDATE sessions SET expires_at = now() WHERE id = %s", (expired.id,))
    assert [refused(connection, token) for token in (first, second, third)] == [True, True, False]
    with pytest.raises(NotFound, match=f"no session {ended.id}"):
        end_session(connection, ended.id)


def test_a_token_with_one_character_changed_is_refused(connection: Connection, ann: HumanRow) -> None:
    _, token = begin_session(connection, ann.id, lifetime=HOUR)
    for place, character in enumerate(token):
        assert refused(connection, token[:place] + ("b" if character == "a" else "a") + token[place + 1 :]), place
    for text in ("", token[:-1], f"{token}a", f"{token}\x00", token.replace("swbs_", "swb_")):
        assert refused(connection, text)


def test_a_new_session_sweeps_the_same_persons_expired_ones(connection: Connection, ann: HumanRow) -> None:
    bob = add_human(connection, email="bob@example.com")
    for human in (ann, ann, bob):
        begin_session(connection, human.id, lifetime=HOUR)
    connection.execute("UPDATE sessions SET expires_at = now()")
    begin_session(connection, ann.id, lifetime=HOUR)
    rows = connection.execute("SELECT human_id, count(*) FROM sessions GROUP BY 1 ORDER BY 1").fetchall()
    assert rows == [(ann.id, 1), (bob.id, 1)]


def test_what_a_client_says_of_itself_is_made_storable(connection: Connection, ann: HumanRow) -> None:
    session, token = begin_session(connection, ann.id, lifetime=HOUR, user_agent="a\x00\ud800" + "x" * 10_000)
    assert session.user_agent == "a\ufffd\ufffd" + "x" * 497
    assert not refused(connection, token)
    with pytest.raises(LedgerError, match=r"^begin session: "):
        begin_session(connection, ann.id, lifetime=HOUR, source_ip="not an address")
    with pytest.raises(NotFound, match="no human 4711"):
        begin_session(connection, 4711, lifetime=HOUR)
