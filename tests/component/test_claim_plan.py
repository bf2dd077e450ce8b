"""What a claim reads in a table of a million: its own rows, whatever else is there.

Buffers are compared, not times: they are the same in every run. The times are the bench's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.abc import Params, Query
from servers import Service, fresh_database

from switchboard.ledger import Connection, Ledger, claim_rows, claim_todos, heartbeat, list_todos, migrate, reap_expired
from switchboard.ledger.wire import register_arrays
from switchboard.model import TodoRow

TERMINAL = 1_000_000
WAITING = 100_000
PENDING = 40
LIMIT = 20

#: Buffers that a deeper index and the look for free room may cost beyond what an empty table costs.
DEPTH = 30


class Explained(Exception):
    """Carries a statement's plan out of the function that made the statement."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.plan = plan


class ExplainingCursor(psycopg.Cursor[Any]):
    """Runs and explains the first statement it is given, and ends there."""

    def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> "ExplainingCursor":
        assert isinstance(query, (sql.SQL, sql.Composed))
        explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + query
        with psycopg.Cursor(self.connection) as cursor:
            row = cursor.execute(explain, params).fetchone()
        assert row
        raise Explained(row[0][0]["Plan"])


@dataclass(frozen=True)
class Plan:
    """A plan with what it read when it was run."""

    top: Mapping[str, Any]

    def nodes(self, of: Mapping[str, Any] | None = None) -> Iterator[Mapping[str, Any]]:
        node = self.top if of is None else of
        yield node
        for child in node.get("Plans", []):
            yield from self.nodes(child)

    @property
    def buffers(self) -> int:
        return int(self.top["Shared Hit Blocks"]) + int(self.top["Shared Read Blocks"])

    @property
    def scans(self) -> list[Mapping[str, Any]]:
        """The scans of the table; what a CTE or a function gives is none."""
        return [node for node in self.nodes() if "Scan" in node["Node Type"] and "todos" in self._read_by(node)]

    @staticmethod
    def _read_by(node: Mapping[str, Any]) -> str:
        return str(node.get("Relation Name", "")) + str(node.get("Index Name", ""))

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    @property
    def reads_the_table(self) -> bool:
        return any("Seq Scan" in node["Node Type"] for node in self.nodes())


def explain(connection: Connection, call: Callable[[Connection], object]) -> Plan:
    """The plan of the very statement that this call of a ledger's function makes; what it changes is undone."""
    connection.cursor_factory = ExplainingCursor
    try:
        with pytest.raises(Explained) as explained, connection.transaction(force_rollback=True):
            call(connection)
    finally:
        connection.cursor_factory = psycopg.Cursor
    return Plan(explained.value.plan)


@contextmanager
def table_of(postgres: Service, fill: Sequence[str]) -> Iterator[Connection]:
    with fresh_database(postgres.url) as url:
        ledger = Ledger(url)
        migrate(ledger)
        ledger.close()
        with Connection.connect(url, autocommit=True, prepare_threshold=None) as connection:
            register_arrays(connection)
            # A million rows take their time where other tests run beside.
            connection.patience = timedelta(minutes=2)
            for statement in fill:
                connection.execute(statement.encode())
            connection.execute("VACUUM (ANALYZE) todos")
            yield connection


#: Newer than all else, so that whoever reads by age alone meets all else first.
CLAIMABLE = f"INSERT INTO todos (queue, title) SELECT 'work', 'claimable' FROM generate_series(1, {PENDING})"

FULL = (
    f"""
    INSERT INTO todos (queue, title, kind, state, attempt, created_at, completed_at)
    SELECT CASE WHEN n % 4 = 0 THEN 'other' ELSE 'work' END, 'ended', 'k' || n % 7,
           CASE WHEN n % 20000 = 1 THEN 'failed' ELSE 'done' END, 1,
           now() - interval '30 days' + n * interval '2 s', now() - interval '30 days' + n * interval '2 s'
    FROM generate_series(1, {TERMINAL}) AS n
    """,
    f"""
    INSERT INTO todos (queue, title, state, attempt, created_at, lease_expires_at, idempotency_key)
    SELECT 'work', 'waiting', 'claimed', 1, now() - interval '1 day', now() + interval '1 hour' + n * interval '1 s',
           'key-' || n
    FROM generate_series(1, {WAITING}) AS n
    """,
    CLAIMABLE,
)


@pytest.fixture(scope="module")
def full(postgres: Service) -> Iterator[Connection]:
    """A million that have ended, a hundred thousand that wait for their retry, and a few to claim."""
    with table_of(postgres, FULL) as connection:
        yield connection


@pytest.fixture(scope="module")
def empty(postgres: Service) -> Iterator[Connection]:
    """The few to claim, alone."""
    with table_of(postgres, (CLAIMABLE,)) as connection:
        yield connection


def claim(connection: Connection) -> object:
    return claim_rows(connection, "work", worker="w1", limit=LIMIT)


def test_a_claim_is_served_by_the_pending_index_and_reads_claimable_rows_alone(full: Connection) -> None:
    plan = explain(full, claim)
    assert not plan.reads_the_table
    (chosen,) = [node for node in plan.scans if node.get("Index Name") == "idx_todos_pending"]
    assert chosen["Node Type"] == "Index Scan"
    assert chosen["Actual Rows"] == LIMIT
    assert chosen.get("Rows Removed by Filter", 0) == 0
    # What it found is then changed by id, and nothing else is read
    assert plan.indexes == {"idx_todos_pending", "todos_pkey"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in plan.scans) <= 3 * LIMIT


def test_a_claim_touches_no_more_than_in_an_empty_table(full: Connection, empty: Connection) -> None:
    # Each twice: the first fills the caches of the session
    large, small = ([explain(connection, claim).buffers for _ in range(2)][1] for connection in (full, empty))
    assert large <= 2 * small + DEPTH


def test_a_claim_of_an_empty_queue_touches_next_to_nothing(full: Connection) -> None:
    plan = explain(full, lambda c: claim_rows(c, "nobody's", worker="w1", limit=LIMIT))
    assert plan.buffers <= 10


@pytest.mark.parametrize("queue", ["work", "other", None])
def test_waiting_retries_whose_time_has_not_come_are_not_read(full: Connection, queue: str | None) -> None:
    plan = explain(full, lambda c: reap_expired(c, queue=queue))
    assert not plan.reads_the_table
    assert sum(node["Actual Rows"] for node in plan.scans) == 0
    # Before PostgreSQL 18 an index that leads with the queue is read whole where none is named.
    whole = queue is None and full.info.server_version < 180_000
    assert plan.buffers <= (1_000 if whole else 20)


def test_what_is_due_is_found_among_what_waits(full: Connection) -> None:
    full.execute(
        "UPDATE todos SET lease_expires_at = now() - interval '1 s' WHERE idempotency_key IN ('key-7', 'key-8')"
    )
    try:
        plan = explain(full, lambda c: reap_expired(c, queue="work"))
        assert "idx_todos_waiting" in plan.indexes
        assert not plan.reads_the_table
        assert plan.buffers <= 100
    finally:
        full.execute(
            "UPDATE todos SET lease_expires_at = now() + interval '1 d' WHERE idempotency_key IN ('key-7', 'key-8')"
        )


def test_a_heartbeat_reads_its_own_row(full: Connection) -> None:
    with full.transaction(force_rollback=True):
        (todo,) = claim_todos(full, "work", worker="w1", limit=1)
        plan = explain(full, lambda c: heartbeat(c, todo.id, todo.owner or ""))
    assert plan.indexes == {"todos_pkey"}
    assert not plan.reads_the_table
    assert plan.buffers <= 30


# Listings

LISTINGS: dict[str, Callable[[Connection, int | None], list[TodoRow]]] = {
    "all": lambda c, before: list_todos(c, before=before),
    "queue": lambda c, before: list_todos(c, queue="work", before=before),
    "pending": lambda c, before: list_todos(c, state="pending", limit=10, before=before),
    "claimed": lambda c, before: list_todos(c, state="claimed", before=before),
    "done": lambda c, before: list_todos(c, state="done", before=before),
    "kind": lambda c, before: list_todos(c, kind="k3", before=before),
    "queue and state": lambda c, before: list_todos(c, queue="other", state="done", before=before),
}


def _page(
    listing: Callable[[Connection, int | None], list[TodoRow]], before: int, connection: Connection
) -> list[TodoRow]:
    return listing(connection, before)


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS.keys())
def test_each_page_of_a_listing_costs_the_same(
    full: Connection, listing: Callable[[Connection, int | None], list[TodoRow]]
) -> None:
    # The first page may have what is newer to pass over: here all that waits
    before = listing(full, None)[-1].id
    for _ in range(3):
        plan = explain(full, partial(_page, listing, before))
        assert not plan.reads_the_table
        assert plan.buffers <= 150
        before = listing(full, before)[-1].id


def test_a_live_todo_is_found_by_its_key_at_once(full: Connection) -> None:
    plan = explain(full, lambda c: list_todos(c, queue="work", state="claimed", idempotency_key="key-4711"))
    assert plan.indexes == {"idx_todos_dedupe"}
    assert plan.buffers <= 10
