"""Retention bounds both age and number, and never takes live work (SPEC-0004, Hybrid Retention)."""

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from switchboard.errors import LedgerError, LedgerUnavailable
from switchboard.ingest import store
from switchboard.ledger import Ledger, Pruned, migrate, prune, set_setting
from switchboard.model import Delivery, Route
from switchboard.normalize import resolve_provider


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def database(ledger: Ledger, database_url: str) -> Iterator["psycopg.Connection"]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def add(
    database: "psycopg.Connection", name: str, *, days: float, state: str = "done", todo_days: float | None = None
) -> None:
    """An event so many days old and its todo, which ended as long ago."""
    event = database.execute(
        "INSERT INTO events (source, family, trust_mode, external_id, payload, payload_size, received_at) "
        "VALUES ('a', 'queue', 'queue', %s, '', 0, now() - make_interval(secs => %s * 86400)) RETURNING id",
        (name, days),
    ).fetchone()
    assert event
    ended = state in ("done", "failed")
    since = days if todo_days is None else todo_days
    database.execute(
        "INSERT INTO todos (queue, title, event_id, state, created_at, completed_at) VALUES ('q', %(name)s, %(event)s, "
        "%(state)s, now() - make_interval(secs => %(days)s * 86400), "
        "CASE WHEN %(ended)s THEN now() - make_interval(secs => %(since)s * 86400) END)",
        {"name": name, "event": event[0], "state": state, "days": days, "ended": ended, "since": since},
    )


def run(ledger: Ledger, *, days: int | None = None, cap: int | None = None) -> Pruned | None:
    with ledger.transaction() as tx:
        if days is not None:
            set_setting(tx.connection, "retention_max_age_days", str(days))
        if cap is not None:
            set_setting(tx.connection, "retention_max_rows", str(cap))
    with ledger.transaction() as tx:
        return prune(tx.connection)


def todos(database: "psycopg.Connection") -> list[str]:
    return [row[0] for row in database.execute("SELECT title FROM todos ORDER BY id")]


def events(database: "psycopg.Connection") -> list[str]:
    return [row[0] for row in database.execute("SELECT external_id FROM events ORDER BY id")]


def test_what_is_older_than_the_limit_goes_and_the_rest_stays(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "old done", days=31)
    add(database, "old failed", days=30.1, state="failed")
    add(database, "young done", days=29.9)
    add(database, "young failed", days=1, state="failed")
    pruned = run(ledger)
    assert todos(database) == ["young done", "young failed"]
    assert events(database) == ["young done", "young failed"]
    assert pruned == Pruned(events=2, todos=2)


@pytest.mark.parametrize("state", ["pending", "claimed"])
def test_live_work_stays_with_its_event_however_old_and_however_many(
    ledger: Ledger, database: "psycopg.Connection", state: str
) -> None:
    for number in range(5):
        add(database, f"live {number}", days=400, state=state)
    add(database, "done", days=0)
    assert run(ledger, cap=3) == Pruned(events=1, todos=1)
    assert todos(database) == events(database) == [f"live {number}" for number in range(5)]


def test_an_events_age_and_its_todos_count_each_by_themselves(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "ended lately", days=90, todo_days=1)
    run(ledger)
    assert todos(database) == ["ended lately"]
    assert events(database) == []


def test_beyond_the_cap_the_oldest_go(ledger: Ledger, database: "psycopg.Connection") -> None:
    for age in (9, 8, 7, 6, 5):
        add(database, f"{age} days", days=age)
    assert run(ledger, cap=2) == Pruned(events=3, todos=3)
    assert todos(database) == events(database) == ["6 days", "5 days"]


def test_the_oldest_todos_are_those_that_ended_first(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "made first, ended last", days=9, todo_days=1)
    add(database, "made last, ended first", days=5, todo_days=4)
    run(ledger, cap=1)
    assert todos(database) == ["made first, ended last"]


def test_live_work_counts_for_the_cap_and_only_what_has_ended_pays(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    for number in range(3):
        add(database, f"live {number}", days=1, state="pending")
    for number in range(3):
        add(database, f"done {number}", days=3 - number)
    run(ledger, cap=4)
    assert todos(database) == events(database) == ["live 0", "live 1", "live 2", "done 2"]


def test_at_the_cap_nothing_goes(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "a", days=1)
    add(database, "b", days=1)
    assert run(ledger, cap=2) == Pruned()


def test_a_todo_by_hand_that_ended_at_no_known_time_is_no_hindrance(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    database.execute("INSERT INTO todos (queue, title, state) VALUES ('q', 'by hand', 'done')")
    add(database, "done", days=1)
    run(ledger, cap=1)
    assert todos(database) == ["done"]


def test_more_than_one_step_of_rows_goes_in_one_pass(ledger: Ledger, database: "psycopg.Connection") -> None:
    database.execute(
        "INSERT INTO todos (queue, title, state, completed_at) "
        "SELECT 'q', 't', 'done', now() - interval '40 days' FROM generate_series(1, 20001)"
    )
    database.execute(
        "INSERT INTO events (source, family, trust_mode, payload, payload_size) "
        "SELECT 'a', 'queue', 'queue', '', 0 FROM generate_series(1, 20003)"
    )
    assert run(ledger, cap=2) == Pruned(events=20001, todos=20001)
    assert database.execute("SELECT count(*) FROM events").fetchone() == (2,)


def test_both_bounds_are_one_transaction(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "by age", days=40)
    add(database, "by number", days=2)
    add(database, "stays", days=1)
    with ledger.transaction() as tx:
        set_setting(tx.connection, "retention_max_rows", "1")

    def fail_at_the_end() -> None:
        with ledger.transaction() as tx:
            assert prune(tx.connection) == Pruned(events=2, todos=2)
            assert todos(database) == ["by age", "by number", "stays"], "others see all or nothing"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_at_the_end()
    assert todos(database) == events(database) == ["by age", "by number", "stays"]


def test_of_two_at_once_the_second_leaves_it_to_the_first(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "old", days=40)
    with ledger.transaction() as first:
        assert prune(first.connection) == Pruned(events=1, todos=1)
        with ledger.transaction() as second:
            assert prune(second.connection) is None
    assert run(ledger) == Pruned()


def test_a_todo_that_is_tried_again_meanwhile_is_kept(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "old", days=40, state="failed")
    with psycopg.connect(database.info.dsn) as other:
        other.execute("UPDATE todos SET state = 'pending', completed_at = NULL")
        run(ledger)
        other.commit()
    assert todos(database) == ["old"]


@pytest.mark.parametrize("value", ["", "many", "-1", "1.5"])
@pytest.mark.parametrize("key", ["retention_max_age_days", "retention_max_rows"])
def test_a_setting_that_is_no_whole_number_is_named_and_deletes_nothing(
    ledger: Ledger, database: "psycopg.Connection", key: str, value: str
) -> None:
    add(database, "old", days=400)
    database.execute("UPDATE settings SET value = %s WHERE key = %s", (value, key))
    with pytest.raises(LedgerError, match=key), ledger.transaction() as tx:
        prune(tx.connection)
    assert todos(database) == events(database) == ["old"]


def letter(database: "psycopg.Connection", key: str, *, days: float, resolved: bool = False) -> None:
    database.execute(
        "INSERT INTO dead_letters (adapter, idempotency_key, reason, detail, payload, received_at, resolved_at, "
        "resolution) VALUES ('a', %(key)s, 'invalid', 'd', '', now() - make_interval(secs => %(days)s * 86400), "
        "CASE WHEN %(resolved)s THEN now() END, CASE WHEN %(resolved)s THEN 'discarded' END)",
        {"key": key, "days": days, "resolved": resolved},
    )


def letters(database: "psycopg.Connection") -> list[str]:
    return [row[0] for row in database.execute("SELECT idempotency_key FROM dead_letters ORDER BY id")]


def test_dead_letters_have_an_age_of_their_own(ledger: Ledger, database: "psycopg.Connection") -> None:
    letter(database, "old", days=90.1)
    letter(database, "old and settled", days=90.1, resolved=True)
    letter(database, "older than an event may be", days=60)
    assert run(ledger, days=1) == Pruned(dead_letters=2, unresolved=1)
    assert letters(database) == ["older than an event may be"]


def test_beyond_their_cap_the_settled_dead_letters_go_first(ledger: Ledger, database: "psycopg.Connection") -> None:
    for name, days, resolved in (("a", 9, False), ("b", 8, True), ("c", 7, False), ("d", 6, True), ("e", 5, False)):
        letter(database, name, days=days, resolved=resolved)
    database.execute("UPDATE settings SET value = '2' WHERE key = 'dead_letters_max_rows'")
    assert run(ledger) == Pruned(dead_letters=3, unresolved=1)
    assert letters(database) == ["c", "e"]


def test_the_oldest_of_several_sources_go_whatever_their_ids_say(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    for name, source, days in (("1", "a", 2), ("2", "b", 9), ("3", "a", 7), ("4", "c", 1), ("5", "b", 3)):
        add(database, name, days=days)
        database.execute("UPDATE events SET source = %s WHERE external_id = %s", (source, name))
    assert run(ledger, cap=2) == Pruned(events=3, todos=3)
    assert events(database) == ["1", "4"]


def test_a_run_is_recorded_with_its_counts(ledger: Ledger, database: "psycopg.Connection") -> None:
    add(database, "old", days=40)
    run(ledger)
    recorded = database.execute("SELECT job, counts, last_succeeded_at <= now() FROM upkeep").fetchall()
    assert recorded == [("prune", {"events": 1, "todos": 1, "dead_letters": 0, "unresolved": 0}, True)]


def test_rows_of_every_state_age_and_number_leave_as_a_plain_reading_of_the_rule_has_it(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    """Against a model: delete by age, then the oldest beyond the cap; what is live stays and counts."""
    rng = random.Random(5)
    rows = []
    for number in range(300):
        state = rng.choice(["done", "failed", "pending", "claimed"])
        # Around the limit of 30 days, and never two at the same moment.
        age = 30 + rng.choice([-2, -1, -0.01, 0.01, 1, 2]) + number / 1e5
        rows.append((str(number), age, state))
        add(database, str(number), days=age, state=state)
    for cap in (250, 170, 100):
        live = {name for name, _, state in rows if state in ("pending", "claimed")}
        young = [row for row in rows if row[1] < 30 or row[0] in live]
        mortal = sorted((row for row in young if row[0] not in live), key=lambda row: -row[1])
        doomed = {row[0] for row in mortal[: max(0, len(young) - cap)]}
        rows = [row for row in young if row[0] not in doomed]
        run(ledger, cap=cap)
        assert set(todos(database)) == set(events(database)) == {name for name, _, _ in rows}


def test_a_redelivery_does_not_wait_for_a_prune_that_is_deleting_its_event(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    route = Route("deploys", "deploys", "redis:deploys")
    delivery = Delivery(b'{"n": 1}', "1-1", "d")
    generic = resolve_provider("generic")
    with ledger.transaction() as tx:
        assert store(tx.connection, route, generic, [delivery]).new == 1
    database.execute("UPDATE todos SET state = 'done', completed_at = now() - interval '40 days'")
    database.execute("UPDATE events SET received_at = now() - interval '40 days'")
    # Given a prune that has deleted the event, and has not ended
    with ledger.transaction() as pruning:
        assert prune(pruning.connection) == Pruned(events=1, todos=1)
        # When its message comes once more, it is known at once
        with ledger.transaction(timeout=timedelta(seconds=5)) as tx:
            assert store(tx.connection, route, generic, [delivery]).duplicates == 1
    # And once the key is forgotten it is new
    with ledger.transaction() as tx:
        assert store(tx.connection, route, generic, [delivery]).new == 1


def test_a_process_that_is_stopping_gives_a_prune_up_and_nothing_has_changed(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    add(database, "old", days=40)
    ledger.open()
    ledger.stop()
    with pytest.raises(LedgerUnavailable, match="stopping"):
        run(ledger)
    assert todos(database) == events(database) == ["old"]


def test_a_dead_letter_that_is_being_replayed_is_left_alone(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    letter(database, "held", days=91)
    letter(database, "free", days=91)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM dead_letters WHERE idempotency_key = 'held' FOR UPDATE")
        assert run(ledger) == Pruned(dead_letters=1, unresolved=1)
    assert letters(database) == ["held"]
