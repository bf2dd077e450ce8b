"""The tables as SPEC-0004 and the design's contract name them, on a migrated database."""

import json
import re
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from switchboard.ledger import Ledger, migrate

BIG, TEXT, WHEN, JSONB, BOOL, INT = "bigint", "text", "timestamp with time zone", "jsonb", "boolean", "integer"

#: What others read and write, as the design's contract names it; a table may have more columns than these.
COLUMNS = {
    "humans": {"id": BIG, "created_at": WHEN},
    "sessions": {"id": BIG, "human_id": BIG, "source_ip": "inet", "created_at": WHEN, "expires_at": WHEN},
    "agents": {"id": BIG, "owner_id": BIG, "name": TEXT, "scopes": "text[]", "created_at": WHEN},
    "endpoints": {
        "id": BIG,
        "agent_id": BIG,
        "queue": TEXT,
        "scopes": "text[]",
        "source_types": "text[]",
        "credential_hash": "bytea",
        "credential_prefix": TEXT,
        "created_at": WHEN,
    },
    "events": {
        "id": BIG,
        "source": TEXT,
        "family": TEXT,
        "event_type": TEXT,
        "external_id": TEXT,
        "trust_mode": TEXT,
        "verified": BOOL,
        "verify_detail": TEXT,
        "content_type": TEXT,
        "headers": JSONB,
        "payload": "bytea",
        "payload_size": INT,
        "source_ip": "inet",
        "received_at": WHEN,
    },
    "todos": {
        "id": BIG,
        "queue": TEXT,
        "source": TEXT,
        "kind": TEXT,
        "title": TEXT,
        "payload": JSONB,
        "event_id": BIG,
        "idempotency_key": TEXT,
        "assignee": TEXT,
        "state": TEXT,
        "owner": TEXT,
        "lease_expires_at": WHEN,
        "attempt": INT,
        "max_attempts": INT,
        "result": JSONB,
        "last_error": TEXT,
        "created_at": WHEN,
        "updated_at": WHEN,
        "claimed_at": WHEN,
        "completed_at": WHEN,
    },
    "adapters": {
        "name": TEXT,
        "family": TEXT,
        "trust_mode": TEXT,
        "enabled": BOOL,
        "config": JSONB,
        "created_at": WHEN,
        "updated_at": WHEN,
    },
    "settings": {"key": TEXT, "value": TEXT},
    "dead_letters": {
        "id": BIG,
        "adapter": TEXT,
        "external_id": TEXT,
        "reason": TEXT,
        "detail": TEXT,
        "family": TEXT,
        "trust_mode": TEXT,
        "verified": BOOL,
        "source_ip": "inet",
        "headers": JSONB,
        "payload": "bytea",
        "deliveries": INT,
        "received_at": WHEN,
        "resolved_at": WHEN,
    },
    "schema_migrations": {"version": TEXT},
}

INDEXES = {
    "idx_todos_pending": (
        "CREATE INDEX idx_todos_pending ON public.todos USING btree (queue, created_at) WHERE (state = 'pending'::text)"
    ),
    "idx_todos_dedupe": (
        "CREATE UNIQUE INDEX idx_todos_dedupe ON public.todos USING btree (queue, idempotency_key) "
        "WHERE ((idempotency_key IS NOT NULL) AND (state <> 'done'::text) AND (state <> 'failed'::text))"
    ),
    "idx_events_dedupe": (
        "CREATE UNIQUE INDEX idx_events_dedupe ON public.events USING btree (source, external_id) "
        "WHERE (external_id IS NOT NULL)"
    ),
    "idx_events_source_time": (
        "CREATE INDEX idx_events_source_time ON public.events USING btree (source, received_at DESC)"
    ),
}

ALL_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attidentity
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
"""


@pytest.fixture
def database(database_url: str) -> Iterator["psycopg.Connection"]:
    """An autocommitting connection to a migrated database."""
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def types(database: "psycopg.Connection") -> dict[tuple[str, str], str]:
    return {(table, column): kind for table, column, kind, _ in database.execute(ALL_COLUMNS)}


def test_every_table_has_the_columns_that_others_rely_on(database: "psycopg.Connection") -> None:
    there = types(database)
    expected = {(table, column): kind for table, columns in COLUMNS.items() for column, kind in columns.items()}
    assert {place: there.get(place) for place in expected} == expected


def test_every_point_in_time_knows_its_zone(database: "psycopg.Connection") -> None:
    kinds = {kind for kind in types(database).values() if kind.startswith(("time", "date"))}
    assert kinds == {WHEN}


@pytest.mark.parametrize("table", ["humans", "sessions", "agents", "endpoints", "events", "todos", "dead_letters"])
def test_ids_are_the_databases_own(database: "psycopg.Connection", table: str) -> None:
    identity = {(name, column): how for name, column, _, how in database.execute(ALL_COLUMNS)}
    assert identity[table, "id"] == "a", "GENERATED ALWAYS AS IDENTITY"


@pytest.mark.parametrize("name", INDEXES)
def test_the_hot_paths_have_their_indexes_to_the_letter(database: "psycopg.Connection", name: str) -> None:
    found = database.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", (name,)).fetchone()
    assert found == (INDEXES[name],)


def test_retention_is_seeded_with_its_defaults(database: "psycopg.Connection") -> None:
    settings: dict[str, str] = dict(database.execute("SELECT key, value FROM settings").fetchall())
    assert settings["retention_max_age_days"] == "30"
    assert settings["retention_max_rows"] == "500000"


def test_another_programs_plain_insert_makes_a_valid_pending_todo(database: "psycopg.Connection") -> None:
    database.execute("INSERT INTO todos (queue, title, payload) VALUES ('q', 'By hand', '{\"a\": 1}')")
    row = database.execute(
        "SELECT state, attempt, max_attempts, owner, lease_expires_at, claimed_at, completed_at, idempotency_key, "
        "now() - created_at < interval '1 minute' FROM todos"
    ).fetchone()
    assert row == ("pending", 0, 5, None, None, None, None, None, True)


@pytest.mark.parametrize("state", ["pending", "claimed"])
def test_a_live_todo_keeps_its_key_to_itself_within_its_queue(database: "psycopg.Connection", state: str) -> None:
    insert = "INSERT INTO todos (queue, title, idempotency_key, state) VALUES (%s, 't', 'k', %s)"
    database.execute(insert, ("q", state))
    with pytest.raises(psycopg.errors.UniqueViolation, match="idx_todos_dedupe"):
        database.execute(insert, ("q", "pending"))
    database.execute(insert, ("another", "pending"))


@pytest.mark.parametrize("state", ["done", "failed"])
def test_the_key_of_a_todo_that_has_ended_is_free_again(database: "psycopg.Connection", state: str) -> None:
    insert = "INSERT INTO todos (queue, title, idempotency_key, state) VALUES ('q', 't', 'k', %s)"
    for each in (state, state, "pending"):
        database.execute(insert, (each,))
    assert database.execute("SELECT count(*) FROM todos").fetchone() == (3,)


def test_todos_without_a_key_are_never_each_others_duplicates(database: "psycopg.Connection") -> None:
    for _ in range(2):
        database.execute("INSERT INTO todos (queue, title) VALUES ('q', 't')")
    assert database.execute("SELECT count(*) FROM todos").fetchone() == (2,)


def test_a_delivery_is_one_event_a_source(database: "psycopg.Connection") -> None:
    insert = (
        "INSERT INTO events (source, family, external_id, trust_mode, payload, payload_size) "
        "VALUES (%s, 'queue', %s, 'queue', '', 0)"
    )
    database.execute(insert, ("deploys", "1-0"))
    with pytest.raises(psycopg.errors.UniqueViolation, match="idx_events_dedupe"):
        database.execute(insert, ("deploys", "1-0"))
    database.execute(insert, ("another", "1-0"))
    for _ in range(2):
        database.execute(insert, ("deploys", None))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO todos (queue, title, state) VALUES ('q', 't', 'paused')",
        "INSERT INTO adapters (name, family, trust_mode) VALUES ('a', 'pigeon', 'queue')",
        "INSERT INTO adapters (name, family, trust_mode) VALUES ('a', 'queue', 'blind')",
        "INSERT INTO events (source, family, trust_mode, payload, payload_size) VALUES ('a', 'x', 'queue', '', 0)",
    ],
)
def test_a_word_that_is_not_of_its_columns_is_refused(database: "psycopg.Connection", statement: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        database.execute(statement.encode())


def test_no_column_is_made_to_hold_a_secret_as_itself(database: "psycopg.Connection") -> None:
    secret = re.compile("secret|password|passwd|token|credential|api_?key|signing")
    held = {place: kind for place, kind in types(database).items() if secret.search(place[1])}
    assert ("endpoints", "credential_hash") in held
    wrong = {
        place: kind
        for place, kind in held.items()
        if not (place[1].endswith("_hash") and kind == "bytea") and not place[1].endswith("_prefix")
    }
    assert not wrong


def plan(database: "psycopg.Connection", query: str) -> list[dict[str, object]]:
    """The plan's nodes, top to bottom, with what each really did."""
    row = database.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode()).fetchone()
    assert row
    nodes, ahead = [], [json.loads(json.dumps(row[0]))[0]["Plan"]]
    while ahead:
        node = ahead.pop(0)
        ahead = node.pop("Plans", []) + ahead
        nodes.append(node)
    return nodes


@pytest.mark.parametrize("lock", ["", "FOR UPDATE SKIP LOCKED"])
def test_the_claim_scan_touches_live_work_only(database: "psycopg.Connection", lock: str) -> None:
    # Given a large backlog of todos that have ended, all older than the few that wait
    database.execute(
        "INSERT INTO todos (queue, title, state, created_at, completed_at) "
        "SELECT 'q', 't', CASE n % 2 WHEN 0 THEN 'done' ELSE 'failed' END, now() - interval '1 day', now() "
        "FROM generate_series(1, 30000) n"
    )
    database.execute("INSERT INTO todos (queue, title) SELECT 'q', 'waits' FROM generate_series(1, 20)")
    database.execute("INSERT INTO todos (queue, title) SELECT 'another', 'waits' FROM generate_series(1, 20)")
    database.execute("VACUUM ANALYZE todos")

    nodes = plan(
        database, f"SELECT id FROM todos WHERE queue = 'q' AND state = 'pending' ORDER BY created_at LIMIT 1 {lock}"
    )
    scans = [node for node in nodes if "Scan" in str(node["Node Type"])]
    assert [scan.get("Index Name") for scan in scans] == ["idx_todos_pending"]
    assert [scan["Actual Rows"] for scan in scans] == [1]
    assert not any("Sort" in str(node["Node Type"]) for node in nodes)
    assert not any(node.get("Rows Removed by Filter") for node in nodes)
