"""PostgreSQL's errors as ours: what speaks of the values is refused for good, all else may pass."""

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from switchboard import LedgerError, LedgerUnavailable
from switchboard.ledger.failures import translate


@pytest.mark.parametrize(
    "sqlstate",
    [
        "22P05",  # \u0000 in jsonb
        "22P02",  # a lone surrogate, or no JSON
        "22021",  # NUL in text
        "22003",  # a number out of range
        "22001",  # too long
        "23505",  # unique
        "23502",  # NULL
        "23514",  # check
        "54000",  # an index row too large
        "54001",  # nested too deep
        "P0001",  # RAISE in a trigger
        "XX000",  # an allocation it refuses
    ],
)
def test_what_speaks_of_the_values_is_the_message_s_own_fault(sqlstate: str) -> None:
    error = translate(errors.lookup(sqlstate)("no"), "create todo")
    assert type(error) is LedgerError
    assert str(error) == f"create todo: no ({sqlstate})"


@pytest.mark.parametrize(
    "sqlstate",
    [
        "08000",  # connection
        "08006",
        "25006",  # a read-only replica after a failover
        "25P02",  # an aborted transaction
        "28P01",  # a password that was changed
        "3D000",  # no such database, yet
        "40001",  # serialization
        "40P01",  # deadlock
        "42501",  # rights taken away
        "42P01",  # a missing table
        "53100",  # disk full
        "53200",  # out of memory
        "53300",  # too many connections
        "55P03",  # lock_timeout
        "57014",  # statement_timeout
        "57P01",  # shutdown
        "57P02",  # crash
        "57P03",  # starting up
        "58030",  # I/O
    ],
)
def test_what_speaks_of_the_server_may_pass(sqlstate: str) -> None:
    error = translate(errors.lookup(sqlstate)("no"), "create todo")
    assert type(error) is LedgerUnavailable
    assert str(error) == f"create todo: no ({sqlstate})"


@pytest.mark.parametrize(
    "raised",
    [
        PoolTimeout("couldn't get a connection after 4.00 sec"),
        PoolClosed("the pool is closed"),
        psycopg.OperationalError("the connection is lost"),
        psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly"),
        psycopg.InterfaceError("the connection is closed"),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_an_error_without_a_state_is_a_lost_connection(raised: psycopg.Error) -> None:
    error = translate(raised, "probe")
    assert type(error) is LedgerUnavailable
    assert str(error) == f"probe: {raised}"


def test_values_that_cannot_even_be_sent_are_the_message_s_own_fault() -> None:
    raised = psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    error = translate(raised, "create todo")
    assert type(error) is LedgerError
    assert str(error) == f"create todo: {raised}"


def test_only_the_first_line_is_told_as_the_next_quotes_the_row() -> None:
    raised = errors.UniqueViolation('duplicate key value violates unique constraint "x"\nDETAIL:  Key (k)=(v) exists.')
    assert str(translate(raised, "insert")) == 'insert: duplicate key value violates unique constraint "x" (23505)'


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_error_that_says_nothing_is_named(text: str) -> None:
    assert str(translate(psycopg.OperationalError(text), "commit")) == "commit: OperationalError"


def test_no_credential_and_nothing_unstorable_is_told() -> None:
    raised = psycopg.OperationalError("cannot reach postgresql://app:hunter2@db/x \x00\ud800")
    message = str(translate(raised, "connect"))
    assert "hunter2" not in message
    assert "\x00" not in message
    message.encode("utf-8")
