"""Dead letters on a real PostgreSQL: kept as they came, looked at safely, replayed once, discarded for good."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from waiting import eventually

from switchboard import ingest
from switchboard.errors import Conflict, MessageInvalid, NotFound
from switchboard.ledger import (
    Ledger,
    get_dead_letter,
    insert_dead_letters,
    list_dead_letters,
    migrate,
    resolve_dead_letter,
    upsert_adapter,
)
from switchboard.model import DeadLetter, Delivery, Family, Route, Shape, Stored, TrustMode
from switchboard.normalize import Normalizer, resolve_provider
from switchboard.replay import replay

PASSWORD = "hunter2-never-shown"
BODY = b'\x00\xff{"raw": "bytes"}\r\n'
GENERIC = resolve_provider("generic")

#: A team's module, whose function is mended by a file that appears beside it.
TEAM = """
from pathlib import Path
from switchboard import Shape
def shape(delivery):
    mended = Path(__file__).with_name("mended")
    if not mended.exists():
        raise KeyError("service")
    if text := mended.read_text():
        raise ValueError(text)
    return Shape.of({"mended": True}, title="mended")
"""


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@dataclass
class House:
    """A ledger with an adapter in it, looked at with a connection of our own."""

    ledger: Ledger
    url: str

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def register(
        self, name: str = "deploys", *, family: Family = "queue", trust_mode: TrustMode = "queue", **config: object
    ) -> Route:
        settings: dict[str, object] = {"type": "redis-stream", "provider": "generic", "max_body": 1000} | config
        with self.ledger.transaction() as tx:
            row = upsert_adapter(
                tx.connection,
                name=name,
                family=family,
                trust_mode=trust_mode,
                queue="work",
                namespace=f"redis:{name}",
                config=settings,
            )
        return Route(
            adapter=name,
            queue="work",
            key_prefix=row.key_prefix,
            provider=str(settings["provider"]),
            family=family,
            trust_mode=trust_mode,
            max_body=int(str(settings["max_body"])),
        )

    def store(self, route: Route, *deliveries: Delivery, normalizer: Normalizer = GENERIC) -> Stored:
        with self.ledger.transaction() as tx:
            return ingest.store(tx.connection, route, normalizer, deliveries)

    def bury(self, route: Route, *deliveries: Delivery) -> Stored:
        with self.ledger.transaction() as tx:
            return ingest.bury(tx.connection, route, GENERIC, deliveries)

    def replay(self, letter_id: int) -> bool:
        with self.ledger.transaction() as tx:
            return replay(tx.connection, letter_id)

    def letters(self) -> list[int]:
        return [letter_id for (letter_id,) in self.rows("SELECT id FROM dead_letters ORDER BY id")]

    def todos(self) -> list[tuple[str, bytes]]:
        return [
            (key, payload)
            for key, payload in self.rows(
                "SELECT t.idempotency_key, e.payload FROM todos t JOIN events e ON e.id = t.event_id ORDER BY t.id"
            )
        ]

    def unresolved(self) -> int:
        return int(self.rows("SELECT count(*) FROM dead_letters WHERE resolved_at IS NULL")[0][0])


@pytest.fixture
def house(ledger: Ledger, database_url: str) -> House:
    return House(ledger, database_url)


def delivery(body: bytes = BODY, native_id: str | None = "1-0", **more: Any) -> Delivery:
    return Delivery(body, native_id, "redis acl: deploy-bot", handle=native_id or "", **more)


def refusing(delivery: Delivery) -> Shape:
    raise KeyError(f"no service in {delivery.native_id}, password={PASSWORD}")


def made(house: House, reason: str) -> int:
    """A dead letter with that reason, and its id."""
    route = house.register()
    headers = {"x-trace": "7", "authorization": f"Bearer {PASSWORD}", "x-api-key": PASSWORD}
    if reason == "invalid":
        house.store(route, delivery(headers=headers), normalizer=refusing)
    elif reason == "too_large":
        house.store(route, delivery(BODY * 100, headers=headers))
    elif reason == "poison":
        house.bury(route, delivery(headers=headers, tries=5))
    else:
        house.store(route, delivery(b"the first"))
        house.store(route, delivery(headers=headers))
    [letter_id] = house.letters()
    return letter_id


REASONS = ["invalid", "too_large", "id_conflict", "poison"]


# Kept


@pytest.mark.parametrize("reason", REASONS)
def test_a_dead_letter_has_the_exact_bytes_masked_headers_and_a_safe_detail(house: House, reason: str) -> None:
    letter_id = made(house, reason)
    with house.ledger.transaction() as tx:
        letter = get_dead_letter(tx.connection, letter_id)
    assert letter.payload == (BODY * 100 if reason == "too_large" else BODY)
    assert letter.payload_size == len(letter.payload)
    assert letter.headers == {"x-trace": "7", "authorization": "«redacted»", "x-api-key": "«redacted»"}
    assert letter.detail
    assert (letter.adapter, letter.reason, letter.external_id) == ("deploys", reason, "redis:deploys:1-0")
    assert letter.verify_detail == "redis acl: deploy-bot"
    assert letter.deliveries == (5 if reason == "poison" else 1)
    assert (letter.resolved_at, letter.resolution) == (None, None)
    everything = house.rows("SELECT row_to_json(d)::text FROM dead_letters d")
    assert PASSWORD not in str(everything)
    assert len(house.todos()) == (1 if reason == "id_conflict" else 0)


@pytest.mark.parametrize(
    "said",
    ["password=hunter2", "postgresql://me:hunter2@host/db", "\x00 and \ud800", "x" * 100_000, 'token: "hunter2"'],
)
def test_whatever_an_error_says_its_detail_can_be_stored_and_shown(house: House, said: str) -> None:
    def failing(_: Delivery) -> Shape:
        raise ValueError(said)

    house.store(house.register(), delivery(), normalizer=failing)
    [(detail,)] = house.rows("SELECT detail FROM dead_letters")
    assert "hunter2" not in detail
    assert len(detail) < 1000
    assert "ValueError" in detail


@pytest.mark.parametrize("reason", REASONS)
def test_one_that_is_delivered_again_makes_no_second_row_and_no_second_report(house: House, reason: str) -> None:
    made(house, reason)
    route = house.register()
    if reason == "poison":
        again = house.bury(route, delivery(tries=6))
    else:
        body = BODY * 100 if reason == "too_large" else BODY
        again = house.store(route, delivery(body), normalizer=refusing if reason == "invalid" else GENERIC)
    assert len(house.letters()) == 1
    assert list(again.dead_letters) == []
    assert again.new == 0


def test_beside_a_dead_letter_its_neighbours_are_stored(house: House) -> None:
    bodies = [b"one", b"x" * 5000, b"three"]
    outcome = house.store(house.register(), *(delivery(body, f"{n}-0") for n, body in enumerate(bodies)))
    assert [payload for _, payload in house.todos()] == [b"one", b"three"]
    assert house.rows("SELECT reason, payload FROM dead_letters") == [("too_large", b"x" * 5000)]
    assert outcome.new == 2


# Replayed


def test_a_dead_letter_whose_cause_is_mended_becomes_one_todo_and_is_resolved(house: House) -> None:
    letter_id = made(house, "invalid")
    assert house.replay(letter_id) is True
    assert house.todos() == [("redis:deploys:1-0", BODY)]
    [(resolution, in_time)] = house.rows(
        "SELECT resolution, resolved_at BETWEEN now() - interval '1 minute' AND now() FROM dead_letters"
    )
    assert (resolution, in_time) == ("replayed", True)
    [event] = house.rows("SELECT source, external_id, family, trust_mode, verified, verify_detail, headers FROM events")
    assert event[:6] == ("deploys", "redis:deploys:1-0", "queue", "queue", False, "redis acl: deploy-bot")
    assert event[6]["x-trace"] == "7"


TRUST = "SELECT family, trust_mode, verified, host(source_ip) FROM "


@pytest.mark.parametrize(("then", "now", "verified"), [("open", "signed", False), ("token", "open", True)])
def test_a_replayed_event_says_how_its_message_was_verified_and_not_how_its_adapter_verifies_today(
    house: House, then: TrustMode, now: TrustMode, verified: bool
) -> None:
    # Given a dead letter of an adapter whose trust was changed since
    route = house.register(family="webhook", trust_mode=then)
    house.store(route, delivery(source_ip="2001:db8::7"), normalizer=refusing)
    house.register(family="webhook", trust_mode=now)
    [letter_id] = house.letters()
    # When it is replayed
    assert house.replay(letter_id) is True
    # Then the event has the trust, and the source, that the message came with
    came = ("webhook", then, verified, "2001:db8::7")
    assert house.rows(TRUST + "dead_letters") == house.rows(TRUST + "events") == [came]


def test_a_dead_letter_from_before_its_trust_was_kept_has_that_of_its_adapter(house: House) -> None:
    route = house.register(family="webhook", trust_mode="signed")
    house.store(route, delivery(), normalizer=refusing)
    house.rows("UPDATE dead_letters SET family = NULL, trust_mode = NULL, verified = NULL, source_ip = NULL")
    [letter_id] = house.letters()
    assert house.replay(letter_id) is True
    assert house.rows(TRUST + "events") == [("webhook", "signed", True, None)]


@pytest.mark.parametrize("reason", ["invalid", "id_conflict", "poison"])
def test_replayed_twice_it_is_one_todo_and_the_second_time_does_nothing(house: House, reason: str) -> None:
    letter_id = made(house, reason)
    assert house.replay(letter_id) is True
    todos = house.todos()
    resolved = house.rows("SELECT resolved_at FROM dead_letters")
    assert house.replay(letter_id) is False
    house.rows("UPDATE todos SET state = 'done'")
    assert house.replay(letter_id) is False
    assert house.todos() == todos
    assert house.rows("SELECT resolved_at FROM dead_letters") == resolved


@pytest.mark.parametrize("reason", ["invalid", "id_conflict"])
def test_replayed_by_many_at_once_it_is_one_todo(house: House, reason: str) -> None:
    letter_id = made(house, reason)
    before = len(house.todos())
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(house.replay, [letter_id] * 8))
    assert sorted(answers) == [False] * 7 + [True]
    assert len(house.todos()) == before + 1


def waits_for_a_lock(house: House) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(house.rows(query)[0][0])


def test_of_a_replay_and_a_discard_at_once_only_the_first_has_its_way(house: House) -> None:
    letter_id = made(house, "invalid")
    with ThreadPoolExecutor(1) as thread:
        with house.ledger.transaction() as tx:
            resolve_dead_letter(tx.connection, letter_id, "discarded")
            replaying = thread.submit(house.replay, letter_id)
            eventually(lambda: waits_for_a_lock(house), what="the replay waits")
        assert replaying.result(10) is False
    assert house.todos() == []
    assert house.rows("SELECT resolution FROM dead_letters") == [("discarded",)]


def test_the_todo_and_the_mark_are_one_transaction(house: House) -> None:
    letter_id = made(house, "invalid")

    def cut_off() -> None:
        with house.ledger.transaction() as tx:
            assert replay(tx.connection, letter_id) is True
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    assert (house.todos(), house.unresolved()) == ([], 1)
    assert house.replay(letter_id) is True
    assert (len(house.todos()), house.unresolved()) == (1, 0)


#: Replays and, with its transaction still open, waits to be killed.
REPLAYER = """
import sys
from switchboard.ledger import Ledger
from switchboard.replay import replay
with Ledger(sys.argv[1]).transaction() as tx:
    assert replay(tx.connection, int(sys.argv[2]))
    print("replayed", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_is_killed_before_its_commit_leaves_neither_todo_nor_mark(house: House) -> None:
    letter_id = made(house, "id_conflict")
    process = subprocess.Popen(
        [sys.executable, "-c", REPLAYER, house.url, str(letter_id)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"replayed\n"
    finally:
        process.kill()
        process.communicate()
    assert (len(house.todos()), house.unresolved()) == (1, 1), "the first message's todo alone"
    assert house.replay(letter_id) is True
    assert (len(house.todos()), house.unresolved()) == (2, 0)


def test_an_id_conflict_becomes_a_todo_under_a_key_of_its_own(house: House) -> None:
    letter_id = made(house, "id_conflict")
    assert house.replay(letter_id) is True
    (first_key, first), (second_key, second) = house.todos()
    assert (first_key, first) == ("redis:deploys:1-0", b"the first")
    assert second == BODY
    assert second_key != first_key
    assert second_key.startswith("redis:deploys:")


def test_two_conflicts_of_one_id_become_two_todos(house: House) -> None:
    route = house.register()
    for body in (b"first", b"second", b"third"):
        house.store(route, delivery(body))
    for letter_id in house.letters():
        assert house.replay(letter_id) is True
    assert sorted(payload for _, payload in house.todos()) == [b"first", b"second", b"third"]
    assert len({key for key, _ in house.todos()}) == 3


def test_a_body_is_no_longer_too_large_when_max_body_has_grown(house: House) -> None:
    letter_id = made(house, "too_large")
    with pytest.raises(MessageInvalid, match=rf"dead letter {letter_id}.*max_body"):
        house.replay(letter_id)
    assert house.unresolved() == 1
    house.register(max_body=100_000)
    assert house.replay(letter_id) is True
    assert [payload for _, payload in house.todos()] == [BODY * 100]


def test_what_is_still_no_todo_fails_with_why_and_stays(house: House) -> None:
    letter_id = made(house, "too_large")
    before = house.rows("SELECT * FROM dead_letters")
    for _ in range(2):
        with pytest.raises(MessageInvalid, match="more than max_body"):
            house.replay(letter_id)
    assert house.rows("SELECT * FROM dead_letters") == before
    assert house.todos() == []


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a team's module in it, which can be imported."""
    (tmp_path / "team_of_dead_letters.py").write_text(TEAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "team_of_dead_letters", raising=False)
    return tmp_path


PROVIDER = "team_of_dead_letters:shape"


def test_a_providers_function_that_is_mended_has_its_effect(house: House, team: Path) -> None:
    route = house.register(provider=PROVIDER)
    house.store(route, delivery(), normalizer=resolve_provider(PROVIDER))
    [letter_id] = house.letters()
    with pytest.raises(MessageInvalid, match="KeyError"):
        house.replay(letter_id)
    (team / "mended").touch()
    assert house.replay(letter_id) is True
    assert house.rows("SELECT title, payload FROM todos") == [("mended", {"mended": True})]


def test_a_providers_function_that_fails_in_another_way_now_is_quoted_as_it_fails_now(house: House, team: Path) -> None:
    route = house.register(provider=PROVIDER)
    house.store(route, delivery(), normalizer=resolve_provider(PROVIDER))
    [letter_id] = house.letters()
    (team / "mended").write_text("only half")
    with pytest.raises(MessageInvalid, match="ValueError: only half"):
        house.replay(letter_id)


def test_a_provider_that_is_not_there_any_more_fails_and_the_letter_stays(house: House) -> None:
    letter_id = made(house, "invalid")
    house.register(provider="no_such_module:shape")
    with pytest.raises(Exception, match="no_such_module"):
        house.replay(letter_id)
    assert house.unresolved() == 1


def test_a_message_without_an_id_of_its_own_is_replayed_as_such(house: House) -> None:
    route = house.register()
    house.store(route, delivery(b"x" * 2000, None))
    [letter_id] = house.letters()
    house.register(max_body=100_000)
    assert house.replay(letter_id) is True
    [(key, payload)] = house.todos()
    assert key.startswith("redis:deploys:")
    assert payload == b"x" * 2000
    assert house.rows("SELECT external_id FROM events") == [(None,)]


def test_a_producers_key_with_colons_survives_a_prefix_that_has_changed(house: House) -> None:
    route = house.register()
    house.store(route, delivery(native_id="key:order:7"), normalizer=refusing)
    [letter_id] = house.letters()
    house.rows("""UPDATE adapters SET config = config || '{"key_prefix": "redis:deploys@other"}'""")
    assert house.replay(letter_id) is True
    assert house.todos() == [("redis:deploys:key:order:7", BODY)]


def test_a_message_that_was_stored_meanwhile_is_resolved_without_a_second_todo(house: House) -> None:
    letter_id = made(house, "invalid")
    house.store(house.register(), delivery())
    assert house.replay(letter_id) is True
    assert len(house.todos()) == 1
    assert house.unresolved() == 0


def test_after_it_was_resolved_the_same_failure_is_a_new_dead_letter(house: House) -> None:
    letter_id = made(house, "invalid")
    with house.ledger.transaction() as tx:
        resolve_dead_letter(tx.connection, letter_id, "discarded")
    assert len(house.store(house.register(), delivery(), normalizer=refusing).dead_letters) == 1
    assert len(house.letters()) == 2


def test_an_unknown_one_is_not_found_and_an_unknown_adapter_too(house: House) -> None:
    with pytest.raises(NotFound, match="999"):
        house.replay(999)
    letter_id = made(house, "invalid")
    house.rows("DELETE FROM adapters")
    with pytest.raises(NotFound, match="deploys"):
        house.replay(letter_id)
    assert house.unresolved() == 1


# Discarded, and listed


def test_discarding_keeps_the_row_and_its_bytes_and_makes_no_todo(house: House) -> None:
    letter_id = made(house, "invalid")
    with house.ledger.transaction() as tx:
        row = resolve_dead_letter(tx.connection, letter_id, "discarded")
    assert (row.resolution, row.resolved_at is not None) == ("discarded", True)
    assert house.rows("SELECT payload FROM dead_letters") == [(BODY,)]
    assert house.todos() == []
    with pytest.raises(Conflict, match="discarded"), house.ledger.transaction() as tx:
        resolve_dead_letter(tx.connection, letter_id, "replayed")
    with pytest.raises(NotFound), house.ledger.transaction() as tx:
        resolve_dead_letter(tx.connection, 999, "discarded")


def several(house: House) -> None:
    """Of two adapters, in three reasons: ids 1 to 5."""
    one, other = house.register("deploys"), house.register("orders")
    house.store(one, delivery(b"a", "1-0"), normalizer=refusing)
    house.store(one, delivery(b"b" * 2000, "2-0"))
    house.store(other, delivery(b"c", "1-0"), normalizer=refusing)
    house.bury(other, delivery(b"d", "2-0", tries=5))
    house.store(one, delivery(b"e", "3-0"), normalizer=refusing)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"adapter": "deploys"}, [5, 2, 1]),
        ({"reason": "invalid"}, [5, 3, 1]),
        ({"adapter": "orders", "reason": "poison"}, [4]),
        ({"adapter": "nobody"}, []),
        ({"limit": 2}, [5, 4]),
        ({"before": 4, "limit": 2}, [3, 2]),
    ],
)
def test_a_listing_is_filtered_newest_first(house: House, filters: dict[str, Any], expected: list[int]) -> None:
    several(house)
    with house.ledger.transaction() as tx:
        assert [letter.id for letter in list_dead_letters(tx.connection, **filters)] == expected


def test_a_listing_shows_resolved_ones_only_where_it_is_asked_to(house: House) -> None:
    several(house)
    with house.ledger.transaction() as tx:
        resolve_dead_letter(tx.connection, 3, "discarded")
        replay(tx.connection, 4)
        assert [letter.id for letter in list_dead_letters(tx.connection)] == [5, 2, 1]
        assert [letter.id for letter in list_dead_letters(tx.connection, resolved=True)] == [5, 4, 3, 2, 1]


def test_a_letter_by_hand_is_as_good_as_any(house: House) -> None:
    route = house.register()
    with house.ledger.transaction() as tx:
        letters = [DeadLetter(delivery(tries=3), "redis:deploys:1-0", "poison", "it killed its worker", 3)]
        assert insert_dead_letters(tx.connection, route, letters) == letters
        assert insert_dead_letters(tx.connection, route, letters) == []
    assert house.rows("SELECT deliveries, reason FROM dead_letters") == [(3, "poison")]


# The command

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path, house: House) -> Cli:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHBOARD_")}

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [sys.executable, "-m", "switchboard.cli", "dead-letters", *arguments],
            cwd=tmp_path,
            env=kept | {"DATABASE_URL": house.url, "PYTHONPATH": str(tmp_path)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return done

    return run


def outcomes(done: "subprocess.CompletedProcess[str]") -> dict[int, str]:
    rows = json.loads(done.stdout)
    assert all(set(row) == {"id", "outcome"} for row in rows)
    return {row["id"]: row["outcome"] for row in rows}


def test_the_command_replays_by_id_and_a_second_time_does_nothing_and_is_no_failure(house: House, cli: Cli) -> None:
    several(house)
    done = cli("replay", "1", "3", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert outcomes(done) == {1: "replayed", 3: "replayed"}
    assert sorted(payload for _, payload in house.todos()) == [b"a", b"c"]
    again = cli("replay", "1", "3", "--json")
    assert (again.returncode, outcomes(again)) == (0, {1: "already resolved", 3: "already resolved"})
    assert len(house.todos()) == 2


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--adapter", "orders"], {3, 4}),
        (["--reason", "invalid"], {1, 3, 5}),
        (["--adapter", "deploys", "--reason", "invalid"], {1, 5}),
        (["--adapter", "nobody"], set()),
    ],
)
@pytest.mark.parametrize("order", ["replay", "discard"])
def test_the_command_selects_by_adapter_and_reason(
    house: House, cli: Cli, order: str, filters: list[str], expected: set[int]
) -> None:
    several(house)
    done = cli(order, *filters, "--json")
    assert done.returncode == 0
    assert set(outcomes(done)) == expected
    resolved = house.rows("SELECT id FROM dead_letters WHERE resolved_at IS NOT NULL")
    assert {letter_id for (letter_id,) in resolved} == expected
    assert len(house.todos()) == (len(expected) if order == "replay" else 0)


def test_the_command_replays_the_rest_where_one_fails_says_why_and_fails(house: House, cli: Cli) -> None:
    several(house)
    done = cli("replay", "1", "2", "3", "999", "--json")
    assert done.returncode == 1
    said = outcomes(done)
    assert (said[1], said[3]) == ("replayed", "replayed")
    assert said[2].startswith("failed: ")
    assert "max_body" in said[2]
    assert said[999].startswith("failed: ")
    assert "2 of 4" in done.stderr
    assert sorted(payload for _, payload in house.todos()) == [b"a", b"c"]
    assert house.rows("SELECT id FROM dead_letters WHERE resolved_at IS NULL ORDER BY id") == [(2,), (4,), (5,)]


def test_the_command_discards_and_a_discarded_one_is_not_replayed(house: House, cli: Cli) -> None:
    several(house)
    done = cli("discard", "1", "2", "--json")
    assert (done.returncode, outcomes(done)) == (0, {1: "discarded", 2: "discarded"})
    again = cli("discard", "1", "--json")
    assert (again.returncode, outcomes(again)) == (0, {1: "already resolved"})
    replayed = cli("replay", "1", "--json")
    assert (replayed.returncode, outcomes(replayed)) == (0, {1: "already resolved"})
    assert cli("discard", "999").returncode == 1
    assert house.todos() == []
    listed = json.loads(cli("list", "--json").stdout)
    assert [row["id"] for row in listed] == [5, 4, 3]


def test_the_command_for_people_names_each_with_its_outcome(house: House, cli: Cli) -> None:
    several(house)
    done = cli("replay", "1", "2")
    assert done.returncode == 1
    assert "replayed" in done.stdout
    assert "max_body" in done.stdout
    assert cli("replay", "--adapter", "nobody").stdout == "no dead letters\n"


@pytest.mark.parametrize("order", ["replay", "discard"])
@pytest.mark.parametrize(
    "arguments", [[], ["1", "--adapter", "deploys"], ["--reason", "no such reason"], ["abc"], ["--no-such-option"]]
)
def test_wrong_use_is_status_2_and_changes_nothing(house: House, cli: Cli, order: str, arguments: list[str]) -> None:
    several(house)
    done = cli(order, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert house.unresolved() == 5


def test_a_database_that_is_away_is_status_1_in_one_line(cli: Cli) -> None:
    away = cli("replay", "1", DATABASE_URL=f"postgresql://someone:{PASSWORD}@127.0.0.1:1/nothing")
    assert away.returncode == 1
    assert away.stderr.count("\n") == 1


def test_the_command_uses_a_teams_mended_function(house: House, cli: Cli, team: Path) -> None:
    house.store(house.register(provider=PROVIDER), delivery(), normalizer=resolve_provider(PROVIDER))
    before = cli("replay", "1", "--json")
    assert before.returncode == 1
    assert "KeyError" in outcomes(before)[1]
    (team / "mended").touch()
    assert outcomes(cli("replay", "--adapter", "deploys", "--json")) == {1: "replayed"}
    assert house.rows("SELECT title FROM todos") == [("mended",)]


def test_more_than_a_page_of_them_is_replayed_whole(house: House, cli: Cli) -> None:
    route = house.register()
    house.store(route, *(delivery(b"%d" % number, f"{number}-0") for number in range(1200)), normalizer=refusing)
    done = cli("replay", "--adapter", "deploys", "--json")
    assert done.returncode == 0
    assert len(outcomes(done)) == 1200
    assert (len(house.todos()), house.unresolved()) == (1200, 0)
