"""The back half on a real PostgreSQL: whatever comes becomes one todo, or one dead letter, and its bytes are kept."""

import json
import random
import string
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256

import psycopg
import pytest
from hostile import BODIES, nested
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from switchboard import ingest
from switchboard.errors import LedgerUnavailable, MessageInvalid
from switchboard.ledger import Ledger, create_todo, migrate
from switchboard.model import Delivery, JsonText, Route, Shape, Stored
from switchboard.normalize import Normalizer, resolve_provider

GENERIC = resolve_provider("generic")
ROUTE = Route(adapter="deploys", queue="work", key_prefix="redis:deploys")
IDENTITY = "redis acl: deploy-bot"

#: JSON that PostgreSQL could hold and readers elsewhere could not.
DEEP = nested(600)


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def database(ledger: Ledger, database_url: str) -> Iterator["psycopg.Connection[dict[str, object]]"]:
    """A connection of our own, to look with."""
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def store(ledger: Ledger, *deliveries: Delivery, normalizer: Normalizer = GENERIC, route: Route = ROUTE) -> Stored:
    with ledger.transaction() as tx:
        return ingest.store(tx.connection, route, normalizer, deliveries)


@dataclass(frozen=True)
class Told:
    """What a batch's outcome says became of its deliveries, in numbers."""

    new: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    dead: int = 0
    refused: int = 0


def told(stored: Stored) -> Told:
    return Told(stored.new, stored.duplicates, len(stored.dead_letters), stored.dead, len(stored.refused))


def delivery(body: bytes, native_id: str | None = "1-0", **more: str) -> Delivery:
    return Delivery(body, native_id, IDENTITY, **more)  # type: ignore[arg-type]


def rows(database: "psycopg.Connection[dict[str, object]]", query: str) -> list[dict[str, object]]:
    return database.execute(query.encode()).fetchall()


def one(database: "psycopg.Connection[dict[str, object]]", query: str) -> dict[str, object]:
    found = rows(database, query)
    assert len(found) == 1, found
    return found[0]


def counts(database: "psycopg.Connection[dict[str, object]]") -> tuple[object, object, object]:
    """How many events, todos and dead letters there are."""
    row = one(
        database,
        "SELECT (SELECT count(*) FROM events) AS events, (SELECT count(*) FROM todos) AS todos, "
        "(SELECT count(*) FROM dead_letters) AS letters",
    )
    return row["events"], row["todos"], row["letters"]


# What is stored


def test_a_delivery_becomes_one_pending_todo_and_one_event_with_its_exact_bytes(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    body = b'{ "title":"Deploy api" , "type":"deploy", "n": 1.50 }\n'
    stored = store(ledger, delivery(body, "1700000000000-7", content_type="application/json"))

    todo = one(database, "SELECT *, payload::text AS said FROM todos")
    assert (todo["queue"], todo["source"], todo["state"], todo["attempt"]) == ("work", "deploys", "pending", 0)
    assert (todo["title"], todo["kind"]) == ("Deploy api", "deploy")
    assert todo["idempotency_key"] == "redis:deploys:1700000000000-7"
    assert todo["said"] == '{"n": 1.50, "type": "deploy", "title": "Deploy api"}'

    event = one(database, "SELECT * FROM events")
    assert (event["payload"], event["payload_size"]) == (body, len(body))
    assert event["id"] == todo["event_id"]
    assert event["external_id"] == "redis:deploys:1700000000000-7"
    assert (event["source"], event["family"], event["trust_mode"]) == ("deploys", "queue", "queue")
    assert (event["verified"], event["verify_detail"]) == (False, IDENTITY)
    assert (event["event_type"], event["content_type"]) == ("deploy", "application/json")
    assert told(stored) == Told(new=1)


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'["a", 1]', ["a", 1]),
        (b"null", None),
        (b'"text"', "text"),
        (b"deploy now", {"text": "deploy now"}),
        (b"", {"text": ""}),
        (b"\xff\x00\x01", {"base64": b64encode(b"\xff\x00\x01").decode()}),
    ],
)
def test_json_keeps_its_structure_and_text_and_bytes_are_wrapped(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", body: bytes, payload: object
) -> None:
    store(ledger, delivery(body))
    row = one(database, "SELECT t.payload, t.title, e.payload AS body FROM todos t JOIN events e ON e.id = t.event_id")
    assert row["payload"] == payload
    assert row["body"] == body
    assert row["title"], "a person can read it"


@pytest.mark.parametrize(
    "number", ["0.1000", "12345678901234567890", "-98765432109876543210.00001", "3.141592653589793238462643383279", "0"]
)
def test_a_number_keeps_its_value_to_the_last_digit(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", number: str
) -> None:
    store(ledger, delivery(f'{{"n": {number}, "in": [{{"m": {number}}}]}}'.encode()))
    row = one(database, "SELECT payload::text AS said, payload ->> 'n' AS n FROM todos")
    assert row["n"] == number
    assert row["said"] == f'{{"n": {number}, "in": [{{"m": {number}}}]}}'


@pytest.mark.parametrize("number", ["1e400", "-1.5E+300", "2e-300", "9e131071", "1e-16383", "-0"])
def test_a_number_beyond_what_floats_hold_keeps_its_value(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", number: str
) -> None:
    store(ledger, delivery(b'{"n": %s}' % number.encode()))
    same = f"SELECT (payload ->> 'n')::numeric = '{number}'::numeric AS same FROM todos"
    assert one(database, same) == {"same": True}


def test_a_batch_of_all_kinds_is_stored_whole(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    bodies = [b'{"n": 1}', b"text", b"\xff\xfe", b""]
    batch = [delivery(body, f"1-{n}") for n, body in enumerate(bodies)]
    random.shuffle(batch)
    stored = store(ledger, *batch)
    found = rows(database, "SELECT e.payload FROM todos t JOIN events e ON e.id = t.event_id ORDER BY idempotency_key")
    assert [row["payload"] for row in found] == bodies
    assert told(stored) == Told(new=4)


def test_nothing_of_a_batch_is_there_before_its_transaction_commits(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    with ledger.transaction() as tx:
        ingest.store(tx.connection, ROUTE, GENERIC, [delivery(b"{}"), delivery(DEEP, "2-0")])
        assert counts(database) == (0, 0, 0)
    assert counts(database) == (1, 1, 1)


# Redeliveries


@pytest.mark.parametrize("state", ["pending", "claimed", "done", "failed"])
def test_a_redelivery_makes_nothing_new_whatever_became_of_its_todo(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", state: str
) -> None:
    store(ledger, delivery(b"{}"))
    database.execute("UPDATE todos SET state = %s", (state,))
    before = rows(database, "SELECT * FROM todos"), rows(database, "SELECT * FROM events")

    stored = store(ledger, delivery(b"{}"))
    assert (rows(database, "SELECT * FROM todos"), rows(database, "SELECT * FROM events")) == before
    assert counts(database) == (1, 1, 0)
    assert told(stored) == Told(duplicates=1)


def test_a_redelivery_among_new_ones_holds_none_of_them_up(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    store(ledger, delivery(b"1", "1-1"), delivery(b"3", "1-3"))
    stored = store(ledger, *(delivery(str(n).encode(), f"1-{n}") for n in range(5)))
    assert counts(database) == (5, 5, 0)
    assert told(stored) == Told(new=3, duplicates=2)


def test_equal_keys_within_a_batch_make_one_todo(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    stored = store(ledger, delivery(b"{}"), delivery(b"{}"), delivery(b"{}"))
    assert counts(database) == (1, 1, 0)
    assert told(stored) == Told(new=1, duplicates=2)


def test_a_dead_letter_that_comes_again_makes_no_second_row(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    store(ledger, delivery(DEEP))
    stored = store(ledger, delivery(DEEP))
    assert counts(database) == (0, 0, 1)
    assert told(stored) == Told(dead=1)

    # Once somebody has resolved it, the same bytes may come again.
    database.execute("UPDATE dead_letters SET resolved_at = now()")
    stored = store(ledger, delivery(DEEP))
    assert counts(database) == (0, 0, 2)
    assert told(stored) == Told(dead_letters=1, dead=1)


@pytest.mark.parametrize("state", ["pending", "done"])
def test_the_same_id_with_another_body_is_kept_as_a_dead_letter_and_leaves_the_first_alone(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", state: str
) -> None:
    store(ledger, delivery(b'{"first": true}'))
    database.execute("UPDATE todos SET state = %s", (state,))
    before = rows(database, "SELECT * FROM todos"), rows(database, "SELECT * FROM events")

    stored = store(ledger, delivery(b'{"first": false}'))
    letter = one(database, "SELECT * FROM dead_letters")
    assert (letter["reason"], letter["payload"]) == ("id_conflict", b'{"first": false}')
    assert (letter["adapter"], letter["external_id"]) == ("deploys", "redis:deploys:1-0")
    assert (rows(database, "SELECT * FROM todos"), rows(database, "SELECT * FROM events")) == before
    assert told(stored) == Told(dead_letters=1, dead=1)
    assert [each.reason for each in stored.dead_letters] == ["id_conflict"]

    # It comes again.
    stored = store(ledger, delivery(b'{"first": false}'))
    assert counts(database) == (1, 1, 1)
    assert told(stored) == Told(dead=1)


def test_the_stored_body_that_comes_again_beside_another_under_its_id_is_still_a_redelivery(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    store(ledger, delivery(b"first"))
    stored = store(ledger, delivery(b"second"), delivery(b"first"))
    assert rows(database, "SELECT payload FROM dead_letters") == [{"payload": b"second"}]
    assert told(stored) == Told(duplicates=1, dead_letters=1, dead=1)


def test_the_same_id_with_another_body_within_a_batch_is_a_conflict_too(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    stored = store(ledger, delivery(b"1"), delivery(b"2"), delivery(b"3"), delivery(b"1"))
    assert one(database, "SELECT payload FROM events") == {"payload": b"1"}
    found = rows(database, "SELECT payload, reason FROM dead_letters ORDER BY payload")
    assert found == [{"payload": body, "reason": "id_conflict"} for body in (b"2", b"3")]
    assert told(stored) == Told(new=1, duplicates=1, dead_letters=2, dead=2)


def test_equal_copies_of_another_body_under_an_id_are_all_dead_letters_and_one_row(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    store(ledger, delivery(b"first"))
    copies = [delivery(b"second"), delivery(b"second"), delivery(b"second")]
    stored = store(ledger, *copies)
    assert {id(letter.delivery) for letter in stored.letters} == {id(copy) for copy in copies}
    assert told(stored) == Told(dead_letters=1, dead=3)
    assert rows(database, "SELECT payload FROM dead_letters") == [{"payload": b"second"}]


def test_another_body_under_a_vouched_id_is_a_redelivery_and_the_log_says_which_was_not_kept(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", caplog: pytest.LogCaptureFixture
) -> None:
    store(ledger, Delivery(b"first", "1-0", IDENTITY, vouched_id=True))
    with caplog.at_level("INFO", "switchboard.ingest"):
        for body in (b"second", b"first"):
            stored = store(ledger, Delivery(body, "1-0", IDENTITY, vouched_id=True))
            ingest.report(ROUTE, stored)
            assert told(stored) == Told(duplicates=1)
    assert counts(database) == (1, 1, 0)
    [said] = caplog.messages
    assert "redis:deploys:1-0" in said
    assert "second" not in said


def test_one_id_from_two_adapters_is_two_deliveries(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    store(ledger, delivery(b"1"))
    store(ledger, delivery(b"2"), route=Route("another", "work", "redis:deploys@another"))
    store(ledger, delivery(b"3"), route=Route("third", "other-work", "redis:deploys"))
    assert counts(database) == (3, 3, 0)


def test_without_an_id_the_body_is_the_key(ledger: Ledger, database: "psycopg.Connection[dict[str, object]]") -> None:
    store(ledger, delivery(b"a", None), delivery(b"b", None), delivery(b"a", None))
    store(ledger, delivery(b"b", None))
    found = {row["idempotency_key"] for row in rows(database, "SELECT idempotency_key FROM todos")}
    assert found == {f"redis:deploys:{sha256(body).hexdigest()}" for body in (b"a", b"b")}
    assert counts(database)[1:] == (2, 0)


# What cannot be shaped


def raising(error: BaseException) -> Normalizer:
    def normalize(delivery: Delivery) -> Shape:
        if delivery.body == b"bad":
            raise error
        return Shape.of({"ok": True}, title="fine")

    return normalize


def returning(result: object) -> Normalizer:
    def normalize(delivery: Delivery) -> Shape:
        return result if delivery.body == b"bad" else Shape.of({"ok": True}, title="fine")  # type: ignore[return-value]

    return normalize


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def shape(title: object, payload: object, **more: object) -> Shape:
    """A shape as an untyped function may make it."""
    return Shape(title=title, payload=payload, **more)  # type: ignore[arg-type]


OWN_FUNCTIONS: dict[str, Normalizer] = {
    "it says so": raising(MessageInvalid("no ref")),
    "it raises": raising(KeyError("ref")),
    "it raises what says nothing": raising(AssertionError()),
    "its error quotes the body": raising(ValueError("bad \x00 \ud800 body")),
    "its error quotes a password": raising(ValueError("postgresql://u:hunter2@h/db password=hunter2")),
    "its error cannot be shown": raising(Unspeakable()),
    "it recurses": raising(RecursionError("maximum recursion depth exceeded")),
    "it returns nothing": returning(None),
    "it returns a dict": returning({"title": "t"}),
    "its title is nothing": returning(shape(None, JsonText("{}"))),
    "its title is bytes": returning(shape(b"title", JsonText("{}"))),
    "its kind is a number": returning(shape("t", JsonText("{}"), kind=7)),
    "its payload is a dict": returning(shape("t", {"a": 1})),
}


@pytest.mark.parametrize("normalizer", OWN_FUNCTIONS.values(), ids=OWN_FUNCTIONS.keys())
def test_a_teams_own_function_that_fails_costs_one_dead_letter_and_no_neighbour(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", normalizer: Normalizer
) -> None:
    stored = store(ledger, delivery(b"a", "1-1"), delivery(b"bad", "1-2"), delivery(b"c", "1-3"), normalizer=normalizer)
    letter = one(database, "SELECT * FROM dead_letters")
    assert (letter["reason"], letter["payload"], letter["external_id"]) == ("invalid", b"bad", "redis:deploys:1-2")
    assert letter["detail"]
    assert "hunter2" not in str(letter)
    assert [row["payload"] for row in rows(database, "SELECT payload FROM events ORDER BY external_id")] == [b"a", b"c"]
    assert told(stored) == Told(new=2, dead_letters=1, dead=1)
    assert [each.delivery.body for each in stored.dead_letters] == [b"bad"]


#: What looks like a shape, and PostgreSQL does not take.
REFUSED_SHAPES: dict[str, Normalizer] = {
    "its payload is no JSON": returning(shape("t", JsonText("{'a': 1}"))),
    "its payload is empty": returning(shape("t", JsonText(""))),
    "its payload has a number out of range": returning(shape("t", JsonText("1e999999"))),
    "its payload is too deep": returning(shape("t", JsonText("[" * 100_000 + "]" * 100_000))),
    "it takes the body for JSON": returning(shape("t", None)),
}


@pytest.mark.parametrize("native_id", ["1-2", None], ids=["with ids", "without"])
@pytest.mark.parametrize("normalizer", REFUSED_SHAPES.values(), ids=REFUSED_SHAPES.keys())
def test_what_postgresql_refuses_is_handed_back_with_why_and_costs_no_neighbour(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", normalizer: Normalizer, native_id: str | None
) -> None:
    bad = delivery(b"bad", native_id)
    batch = [delivery(b"a", native_id and "1-1"), bad, delivery(b"c", native_id and "1-3")]
    stored = store(ledger, *batch, normalizer=normalizer)
    assert counts(database) == (2, 2, 0)
    assert {bytes(row["payload"]) for row in rows(database, "SELECT payload FROM events")} == {b"a", b"c"}  # type: ignore[call-overload]
    assert told(stored) == Told(new=2, refused=1)
    ((refused, why),) = stored.refused
    assert refused is bad
    assert why.startswith("insert events and todos: ")

    # Tried alone it is refused again, the others are redeliveries; in the end it is kept with its bytes.
    assert told(store(ledger, bad, normalizer=normalizer)) == Told(refused=1)
    assert told(store(ledger, *batch, normalizer=normalizer)) == Told(duplicates=2, refused=1)
    with ledger.transaction() as tx:
        assert told(ingest.bury(tx.connection, ROUTE, normalizer, [bad])) == Told(dead_letters=1, dead=1)
    letter = one(database, "SELECT reason, payload FROM dead_letters")
    assert letter == {"reason": "poison", "payload": b"bad"}


def test_several_that_postgresql_refuses_are_found_out_among_many(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    database.execute("ALTER TABLE todos ADD CHECK (title <> 'bad')")
    bad = (0, 7, 8, 40, 99)
    batch = [delivery(b"bad" if number in bad else b"fine", f"1-{number}") for number in range(100)]
    stored = store(ledger, *batch)
    assert counts(database) == (95, 95, 0)
    assert told(stored) == Told(new=95, refused=5)
    assert {refused.native_id for refused, _ in stored.refused} == {f"1-{number}" for number in bad}
    assert one(database, "SELECT count(*) FROM events WHERE payload = 'bad'") == {"count": 0}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("length", [20_000, 200_000])
def test_a_long_error_text_costs_no_time(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", length: int
) -> None:
    began = time.monotonic()
    store(ledger, delivery(b"bad"), normalizer=raising(ValueError("x" * length)))
    assert counts(database) == (0, 0, 1)
    assert time.monotonic() - began < 2


@pytest.mark.timeout(30)
def test_a_long_header_costs_no_time(ledger: Ledger, database: "psycopg.Connection[dict[str, object]]") -> None:
    began = time.monotonic()
    store(ledger, Delivery(b"{}", "1-0", IDENTITY, {"link": "https://example.org/" + "x" * 100_000}))
    assert counts(database) == (1, 1, 0)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "title", ["t" * 1_000_000, "a\x00b", "\ud800", "", "two\nlines"], ids=["long", "NUL", "surrogate", "empty", "lines"]
)
def test_any_text_of_a_teams_own_function_can_be_stored(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", title: str
) -> None:
    made = Shape.of({"said": title, title: 1}, title=title, kind=title, event_type=title)
    store(ledger, delivery(b"bad"), normalizer=returning(made))
    assert counts(database) == (1, 1, 0)


@pytest.mark.parametrize("name", ["two hundred thousand levels", "an exponent too large"])
def test_a_body_that_postgresql_cannot_hold_is_a_dead_letter_beside_its_stored_neighbours(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", name: str
) -> None:
    neighbours = [delivery(b"{}", f"1-{n}") for n in range(5)]
    stored = store(ledger, *neighbours[:2], delivery(BODIES[name], "9-9"), *neighbours[2:])
    letter = one(database, "SELECT * FROM dead_letters")
    assert (letter["payload"], letter["reason"]) == (BODIES[name], "invalid")
    assert (letter["verify_detail"], letter["deliveries"], letter["resolved_at"]) == (IDENTITY, 1, None)
    assert counts(database) == (5, 5, 1)
    assert told(stored) == Told(new=5, dead_letters=1, dead=1)


def test_a_body_of_64_megabytes_ends_whole_beside_its_neighbours(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    huge = bytes(64 * 1024**2)
    text = b'"' + b"x" * (64 * 1024**2) + b'"'
    store(ledger, delivery(b'{"n": 1}', "1-0"), delivery(huge, "1-1"), delivery(b'{"n": 2}', "1-2"))
    # Where the adapter allows it, it is a todo like any other.
    roomy = Route("deploys", "work", "redis:deploys", max_body=10**9)
    store(ledger, delivery(text, "1-3"), route=roomy)
    assert rows(database, "SELECT reason, sha256(payload) AS digest FROM dead_letters") == [
        {"reason": "too_large", "digest": sha256(huge).digest()}
    ]
    assert rows(database, "SELECT sha256(payload) AS digest FROM events ORDER BY id DESC LIMIT 1") == [
        {"digest": sha256(text).digest()}
    ]
    assert one(database, "SELECT count(*) AS todos FROM todos") == {"todos": 3}


def test_a_body_over_the_limit_is_kept_as_too_large(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    small = Route("deploys", "work", "redis:deploys", max_body=10)
    stored = store(ledger, delivery(b"x" * 10, "1-1"), delivery(b"y" * 11, "1-2"), route=small)
    letter = one(database, "SELECT reason, payload, detail FROM dead_letters")
    assert (letter["reason"], letter["payload"]) == ("too_large", b"y" * 11)
    assert "11" in str(letter["detail"])
    assert one(database, "SELECT payload FROM events") == {"payload": b"x" * 10}
    assert told(stored) == Told(new=1, dead_letters=1, dead=1)


def test_what_its_transport_found_invalid_is_a_dead_letter_with_that_reason(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    store(ledger, delivery(b"{}", invalid="the entry has no field 'body'"), delivery(b"{}", "2-0"))
    letter = one(database, "SELECT reason, detail FROM dead_letters")
    assert letter == {"reason": "invalid", "detail": "the entry has no field 'body'"}
    assert counts(database) == (1, 1, 1)


ODD = {"NUL": "a\x00b", "surrogate": "a\ud800b", "long": "z" * 100_000}


@pytest.mark.parametrize("dead", [False, True], ids=["stored", "dead letter"])
@pytest.mark.parametrize("place", ["headers", "content_type", "verify_detail"])
@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_whatever_text_a_transport_hands_over_sinks_nothing(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", place: str, text: str, dead: bool
) -> None:
    odd: dict[str, object] = {"verify_detail": IDENTITY, "headers": {}, "content_type": ""}
    odd[place] = {"x-odd": text, text: "x"} if place == "headers" else text
    invalid = "as the transport says" if dead else None
    store(ledger, Delivery(b"{}", "1-1", invalid=invalid, **odd), delivery(b"{}", "1-2"))  # type: ignore[arg-type]
    assert counts(database) == ((1, 1, 1) if dead else (2, 2, 0))


# Credentials


HEADERS = {
    "Authorization": "Bearer hunter2",
    "cookie": "session=hunter2",
    "X-Api-Key": "hunter2",
    "x-hub-signature-256": "sha256=hunter2",
    "db_password": "hunter2",
    "client_secret": "hunter2",
    "callback": "https://bot:hunter2@example.org/hook",
    "X-Request-Id": "plain-7",
}


@pytest.mark.parametrize("body", [b"{}", DEEP], ids=["events", "dead_letters"])
def test_headers_that_carry_credentials_are_masked_before_they_are_stored(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", body: bytes
) -> None:
    store(ledger, Delivery(body, "1-0", IDENTITY, HEADERS))
    found = rows(database, "SELECT headers FROM events UNION ALL SELECT headers FROM dead_letters")
    assert len(found) == 1
    headers = found[0]["headers"]
    assert isinstance(headers, dict)
    assert "hunter2" not in json.dumps(headers)
    assert set(headers) == set(HEADERS)
    assert headers["X-Request-Id"] == "plain-7"
    assert headers["Authorization"] == "«redacted»"


# Hostile bodies


def check_one(ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", bodies: Sequence[bytes]) -> None:
    """Each of these, in one batch and then again: one todo whose event has the bytes, or one dead letter with them."""
    database.execute("TRUNCATE events, todos, dead_letters")
    batch = [delivery(body, f"1-{n}") for n, body in enumerate(bodies)]
    first = store(ledger, *batch)
    again = store(ledger, *batch)

    kept = rows(
        database,
        "SELECT e.external_id AS id, e.payload, e.payload_size, t.title, t.state "
        "FROM events e LEFT JOIN todos t ON t.event_id = e.id AND t.idempotency_key = e.external_id "
        "UNION ALL SELECT external_id, payload, length(payload), detail, 'dead' FROM dead_letters",
    )
    assert {row["id"]: row["payload"] for row in kept} == {
        f"redis:deploys:1-{n}": body for n, body in enumerate(bodies)
    }
    assert len(kept) == len(bodies)
    assert all(row["state"] in ("pending", "dead") for row in kept), "an event without its todo"
    for row in kept:
        title = row["title"]
        assert isinstance(title, str)
        assert title.strip()
        assert row["state"] == "dead" or (len(title) <= 200 and "\n" not in title)
    assert told(first) == Told(first.new, 0, first.dead, first.dead, 0)
    assert first.new + first.dead == len(bodies)
    assert told(again) == Told(duplicates=first.new, dead=first.dead)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_each_hostile_body_ends_as_one_todo_or_one_dead_letter_and_its_neighbours_are_stored(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", body: bytes
) -> None:
    check_one(ledger, database, [b'{"before": 1}', body, b'{"after": 1}'])


def test_all_hostile_bodies_in_one_batch_sink_nobody(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    check_one(ledger, database, list(BODIES.values()))
    dead = {row["payload"] for row in rows(database, "SELECT payload FROM dead_letters")}
    named = {name for name, body in BODIES.items() if body in dead}
    assert {"501 levels", "two hundred thousand levels", "an exponent too large"} <= named
    assert named.isdisjoint({"empty", "every byte", "1e400", "an escaped NUL", "500 levels", "latin-1", "UTF-16"})


@pytest.mark.parametrize("name", ["an escaped backslash before u0000", "a pair", "names that become equal"])
def test_only_what_jsonb_cannot_hold_is_replaced(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", name: str
) -> None:
    store(ledger, delivery(BODIES[name]))
    expected = {
        "an escaped backslash before u0000": {"a": "\\u0000"},
        "a pair": {"a": "\U0001f600"},
        "names that become equal": {"\ufffd": 3},
    }
    assert one(database, "SELECT payload FROM todos") == {"payload": expected[name]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
escapes = st.text(alphabet=string.hexdigits + '\\u"dD8c0nx ', max_size=40)
numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,7})?", fullmatch=True)
bodies = st.one_of(
    st.binary(max_size=200),
    st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    json_values.map(lambda value: json.dumps(value).encode()),
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    escapes.map(lambda inner: f'{{"a": "{inner}"}}'.encode()),
    escapes.map(lambda inner: f'{{"title": "{inner}", "{inner}": [1]}}'.encode()),
    numbers.map(lambda number: f'{{"n": {number}}}'.encode()),
    st.text(alphabet='[]{}",:0 \\', max_size=60).map(str.encode),
)


@given(st.lists(bodies, min_size=1, max_size=20))
@example([b'{"title": "\\ud83d"}', b'"\\u0000"', b"\xed\xb2\x80", b'{"n": 1e-99999}'])
@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_ends_as_one_todo_or_one_dead_letter(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", bodies: list[bytes]
) -> None:
    check_one(ledger, database, bodies)


@given(json_values)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_json_says_is_what_its_todo_says(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]", value: object
) -> None:
    database.execute("TRUNCATE events, todos, dead_letters")
    written = json.dumps(value)
    body = written.replace("\\u0000", "\\ufffd") if "\\\\" not in written else '"\\\\"'
    store(ledger, delivery(body.encode()))
    # Compared by PostgreSQL, whose numbers are exact.
    database.execute("DELETE FROM todos WHERE payload = %s::jsonb", (body,))
    assert counts(database) == (1, 0, 0)


# Many at once


def test_threads_that_store_overlapping_batches_make_one_todo_a_key_and_no_deadlock(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    keys = [f"1-{n}" for n in range(300)]
    results = at_once(ledger, 4, lambda chance: [delivery(b"{}", key) for key in chance.sample(keys, 200)])
    errors = [result for result in results if isinstance(result, BaseException)]
    assert errors == []
    todos = Counter(str(row["idempotency_key"]) for row in rows(database, "SELECT idempotency_key FROM todos"))
    assert set(todos.values()) == {1}
    assert counts(database) == (len(todos), len(todos), 0)
    assert sum(result.new for result in results if isinstance(result, Stored)) == len(todos)


def test_threads_whose_batches_disagree_about_a_body_lose_none_of_them(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    # Given two bodies under each id, and one that cannot be shaped, each in batches of any order
    bodies = (b"1", b"2", DEEP)
    results = at_once(
        ledger,
        4,
        lambda chance: [delivery(chance.choice(bodies), f"1-{n}") for n in chance.sample(range(60), 40)],
        tries=20,
    )
    for result in results:
        if isinstance(result, BaseException):
            assert isinstance(result, LedgerUnavailable), "what may pass is tried again by the consumer"
    for body in bodies:
        store(ledger, *(delivery(body, f"1-{n}") for n in range(60)))
    found = one(database, "SELECT count(*), count(DISTINCT idempotency_key) AS keys FROM todos")
    assert found == {"count": 60, "keys": 60}
    kept = rows(database, "SELECT external_id, payload FROM events UNION SELECT external_id, payload FROM dead_letters")
    assert {(row["external_id"], row["payload"]) for row in kept} == {
        (f"redis:deploys:1-{n}", body) for body in bodies for n in range(60)
    }
    assert counts(database) == (60, 60, 120)


def at_once(
    ledger: Ledger, threads: int, batch: Callable[[random.Random], list[Delivery]], *, rounds: int = 12, tries: int = 1
) -> list[Stored | BaseException]:
    """Each thread stores so many batches of its own; what each attempt ended in."""
    together = threading.Barrier(threads)
    results: list[Stored | BaseException] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        together.wait(10)
        for _ in range(rounds):
            deliveries = batch(chance)
            for _ in range(tries):
                try:
                    results.append(store(ledger, *deliveries))
                    break
                except Exception as error:
                    results.append(error)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return results


def test_a_todo_that_somebody_made_under_the_key_is_not_doubled(
    ledger: Ledger, database: "psycopg.Connection[dict[str, object]]"
) -> None:
    with ledger.transaction() as tx:
        create_todo(tx.connection, queue="work", title="by hand", idempotency_key="redis:deploys:1-0")
    store(ledger, delivery(b"{}"))
    assert [row["title"] for row in rows(database, "SELECT title FROM todos")] == ["by hand"]
