"""The ledger's typed functions, one table after the other (SPEC-0004, Database Operation Standards)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from switchboard.errors import LedgerError, LedgerUnavailable, NotFound
from switchboard.ledger import (
    Connection,
    Ledger,
    adapter_enabled,
    create_todo,
    get_dead_letter,
    get_event,
    get_setting,
    get_todo,
    insert_dead_letters,
    insert_event,
    list_adapters,
    list_dead_letters,
    list_todos,
    migrate,
    set_adapter_enabled,
    set_setting,
    upsert_adapter,
)
from switchboard.model import DeadLetter, Delivery, Route, TodoState

ROUTE = Route(adapter="deploys", queue="work", key_prefix="redis:deploys")


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def connection(ledger: Ledger) -> Iterator[Connection]:
    """The connection of an open transaction."""
    with ledger.transaction() as tx:
        yield tx.connection


def ask(connection: Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return row and row[0]


# Events


def test_an_event_is_stored_with_its_exact_bytes_and_read_back(connection: Connection) -> None:
    made = insert_event(
        connection,
        source="deploys",
        payload=b"\x00\xff{",
        verify_detail="redis acl: deploy-bot",
        external_id="redis:deploys:1-0",
        event_type="deploy",
        content_type="x/y",
        headers={"x-id": "7", "authorization": "Bearer hunter2"},
        source_ip="2001:db8::7",
    )
    assert (made.payload, made.payload_size) == (b"\x00\xff{", 3)
    assert (made.family, made.trust_mode, made.verified) == ("queue", "queue", False)
    assert made.headers == {"x-id": "7", "authorization": "«redacted»"}
    assert made.source_ip == "2001:db8::7"
    assert made.received_at.tzinfo is not None
    assert get_event(connection, made.id) == made


def test_an_event_of_a_known_delivery_is_the_one_that_is_there(connection: Connection) -> None:
    first = insert_event(connection, source="deploys", payload=b"1", external_id="k")
    again = insert_event(connection, source="deploys", payload=b"1", external_id="k")
    assert ask(connection, "SELECT count(*) FROM events") == 1
    assert again == first
    for _ in range(2):
        insert_event(connection, source="deploys", payload=b"1")
    assert ask(connection, "SELECT count(*) FROM events") == 3


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_an_event_takes_headers_of_any_text(connection: Connection, text: str) -> None:
    assert insert_event(connection, source="deploys", payload=b"", headers={"x": text, text: "y"}).id


# Todos


def test_a_todo_is_made_pending_and_read_back(connection: Connection) -> None:
    made, new = create_todo(
        connection, queue="work", title="Deploy", payload={"a": [1, None, "käse"]}, kind="deploy", assignee="joe"
    )
    assert new
    assert (made.state, made.attempt, made.max_attempts, made.owner) == ("pending", 0, 5, None)
    assert (made.payload, made.assignee, made.kind) == ({"a": [1, None, "käse"]}, "joe", "deploy")
    assert get_todo(connection, made.id) == made


@pytest.mark.parametrize("state", ["pending", "claimed"])
def test_a_key_of_a_live_todo_gives_that_todo(connection: Connection, state: str) -> None:
    first, _ = create_todo(connection, queue="work", title="first", idempotency_key="k")
    connection.execute("UPDATE todos SET state = %s", (state,))
    twin, new = create_todo(connection, queue="work", title="second", idempotency_key="k")
    assert ask(connection, "SELECT count(*) FROM todos") == 1
    assert not new
    assert (twin.id, twin.title, twin.state) == (first.id, "first", state)


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_key_of_a_todo_that_has_ended_makes_a_new_one(connection: Connection, state: str) -> None:
    first, _ = create_todo(connection, queue="work", title="first", idempotency_key="k")
    connection.execute("UPDATE todos SET state = %s", (state,))
    second, new = create_todo(connection, queue="work", title="second", idempotency_key="k")
    assert new
    assert second.id != first.id
    assert ask(connection, "SELECT count(*) FROM todos") == 2


def test_a_key_belongs_to_its_queue(connection: Connection) -> None:
    made = {create_todo(connection, queue=queue, title="t", idempotency_key="k")[0].id for queue in ("a", "b")}
    assert len(made) == 2


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_text_of_a_todo_that_postgresql_refuses_is_replaced(connection: Connection, text: str) -> None:
    made, _ = create_todo(connection, queue="work", title=text, kind=text, payload={"a": text, text: [text]})
    clean = "a\ufffdb"
    assert (made.title, made.kind, made.payload) == (clean, clean, {"a": clean, clean: [clean]})
    assert get_todo(connection, made.id) == made


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("place", ["queue", "idempotency_key"])
def test_a_name_that_postgresql_refuses_is_a_ledger_error_and_no_outage(ledger: Ledger, place: str, text: str) -> None:
    names = {"queue": "work", "idempotency_key": "k"} | {place: text}
    with pytest.raises(LedgerError) as failure, ledger.transaction() as tx:
        create_todo(tx.connection, title="t", queue=names["queue"], idempotency_key=names["idempotency_key"])
    assert not isinstance(failure.value, LedgerUnavailable)
    with ledger.transaction() as tx:
        assert list_todos(tx.connection) == []


def test_todos_are_listed_newest_first_by_queue_and_state_and_page(connection: Connection) -> None:
    for number in range(5):
        create_todo(connection, queue="ab"[number % 2], title=str(number))
    connection.execute("UPDATE todos SET state = 'done' WHERE title IN ('0', '1')")

    def titles(*, queue: str | None = None, state: TodoState | None = None, before: int | None = None) -> list[str]:
        return [todo.title for todo in list_todos(connection, queue=queue, state=state, before=before, limit=3)]

    assert titles() == ["4", "3", "2"]
    assert titles(before=list_todos(connection, limit=3)[-1].id) == ["1", "0"]
    assert titles(queue="a") == ["4", "2", "0"]
    assert titles(queue="a", state="done") == ["0"]
    assert titles(queue="nobody's") == []


# Adapters


def register(connection: Connection, name: str = "deploys", **config: object) -> object:
    return upsert_adapter(
        connection,
        name=name,
        family="queue",
        trust_mode="queue",
        queue="work",
        namespace="redis:deploys",
        config=config,
    )


def test_an_adapter_registers_enabled_and_again_as_it_is_configured_now(connection: Connection) -> None:
    register(connection, batch=1)
    register(connection, batch=2)
    (row,) = list_adapters(connection)
    assert (row.name, row.family, row.trust_mode, row.enabled) == ("deploys", "queue", "queue", True)
    assert row.config["batch"] == 2


def test_registering_again_never_touches_enabled(connection: Connection) -> None:
    register(connection)
    assert adapter_enabled(connection, "deploys")
    assert set_adapter_enabled(connection, "deploys", False).enabled is False
    register(connection)
    assert not adapter_enabled(connection, "deploys")
    set_adapter_enabled(connection, "deploys", True)
    register(connection)
    assert adapter_enabled(connection, "deploys")


def test_one_adapter_is_switched_and_no_other(connection: Connection) -> None:
    register(connection, "a")
    register(connection, "b")
    set_adapter_enabled(connection, "a", False)
    assert [(row.name, row.enabled) for row in list_adapters(connection)] == [("a", False), ("b", True)]


# Dead letters


def letter(body: bytes = b"bad", key: str = "redis:deploys:1-0", reason: str = "invalid") -> DeadLetter:
    delivery = Delivery(body, key.rsplit(":", 1)[1], "redis acl: deploy-bot", {"cookie": "hunter2"}, "x/y")
    return DeadLetter(delivery, key, reason, "why \x00 password=hunter2")  # type: ignore[arg-type]


def test_a_dead_letter_is_kept_with_its_bytes_and_no_credential(connection: Connection) -> None:
    assert insert_dead_letters(connection, ROUTE, [letter(b"\x00\xff")]) == [letter(b"\x00\xff")]
    (listed,) = list_dead_letters(connection)
    row = get_dead_letter(connection, listed.id)
    assert (row.payload, row.reason, row.deliveries) == (b"\x00\xff", "invalid", 1)
    assert (row.adapter, row.external_id, row.content_type) == ("deploys", "redis:deploys:1-0", "x/y")
    assert "hunter2" not in str(row)
    assert row.resolved_at is None
    assert (listed.id, listed.payload_size, listed.reason) == (row.id, 2, "invalid")


def test_a_dead_letter_that_nobody_has_resolved_is_there_once(connection: Connection) -> None:
    insert_dead_letters(connection, ROUTE, [letter()])
    assert insert_dead_letters(connection, ROUTE, [letter(), letter()]) == []
    others = [letter(b"other"), letter(key="redis:deploys:2-0"), letter(reason="too_large")]
    assert len(insert_dead_letters(connection, ROUTE, others)) == 3
    assert ask(connection, "SELECT count(*) FROM dead_letters") == 4


def test_a_resolved_dead_letter_may_come_again_and_is_listed_on_request(connection: Connection) -> None:
    insert_dead_letters(connection, ROUTE, [letter()])
    connection.execute("UPDATE dead_letters SET resolved_at = now()")
    assert list_dead_letters(connection) == []
    assert len(list_dead_letters(connection, resolved=True)) == 1
    assert insert_dead_letters(connection, ROUTE, [letter()]) == [letter()]
    assert len(list_dead_letters(connection)) == 1


def test_dead_letters_are_listed_newest_first_by_adapter_and_page(connection: Connection) -> None:
    for number in range(3):
        insert_dead_letters(connection, ROUTE, [letter(key=f"redis:deploys:{number}-0")])
    insert_dead_letters(connection, Route("other", "work", "redis:other"), [letter()])
    page = list_dead_letters(connection, adapter="deploys", limit=2)
    assert [row.external_id for row in page] == ["redis:deploys:2-0", "redis:deploys:1-0"]
    rest = list_dead_letters(connection, adapter="deploys", before=page[-1].id)
    assert [row.external_id for row in rest] == ["redis:deploys:0-0"]


# Settings


def test_a_setting_is_read_and_changed(connection: Connection) -> None:
    assert get_setting(connection, "retention_max_rows") == "500000"
    for value in ("7", "8"):
        set_setting(connection, "retention_max_rows", value)
    assert get_setting(connection, "retention_max_rows") == "8"


def test_a_setting_that_was_taken_out_can_be_set_again(connection: Connection) -> None:
    connection.execute("DELETE FROM settings")
    set_setting(connection, "retention_max_rows", "7")
    assert get_setting(connection, "retention_max_rows") == "7"


# What is not there, and what is refused


ABSENT: dict[str, Callable[[Connection], object]] = {
    "event": lambda c: get_event(c, 404),
    "todo": lambda c: get_todo(c, 404),
    "dead letter": lambda c: get_dead_letter(c, 404),
    "adapter enabled": lambda c: adapter_enabled(c, "nobody"),
    "set adapter enabled": lambda c: set_adapter_enabled(c, "nobody", True),
    "setting": lambda c: get_setting(c, "nobody"),
}


@pytest.mark.parametrize("look", ABSENT.values(), ids=ABSENT.keys())
def test_what_is_not_there_is_not_found_and_named(connection: Connection, look: Callable[[Connection], object]) -> None:
    with pytest.raises(NotFound, match=r"404|nobody"):
        look(connection)


def test_what_sql_would_mean_something_by_is_only_text(connection: Connection) -> None:
    text = "'); DROP TABLE todos; -- %s %(x)s $1 \\"
    made, _ = create_todo(connection, queue=text, title=text, kind=text, idempotency_key=text, payload={text: text})
    register(connection, text)
    with pytest.raises(NotFound):
        set_setting(connection, text, text)
    (found,) = list_todos(connection, queue=text)
    assert (found.id, found.title, found.payload) == (made.id, text, {text: text})
    assert list_adapters(connection)[0].name == text
    with pytest.raises(NotFound):
        get_setting(connection, text)


def test_a_table_that_is_missing_may_come_back_and_is_ledger_unavailable(ledger: Ledger, database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("ALTER TABLE todos RENAME TO moved")
    with pytest.raises(LedgerUnavailable, match=r"^get todo: .*42P01"), ledger.transaction() as tx:
        get_todo(tx.connection, 1)


def test_times_are_the_databases_own_and_know_their_zone(connection: Connection) -> None:
    made, _ = create_todo(connection, queue="work", title="t")
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert made.created_at == ask(connection, "SELECT now()")
