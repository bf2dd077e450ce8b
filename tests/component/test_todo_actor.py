"""``@switchboard.todo``: a handler's todo ends as its handler did, and by nothing else."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dramatiq
import psycopg
import pytest
from dramatiq.middleware import AsyncIO, Middleware, MiddlewareError, Retries, SkipMessage, TimeLimitExceeded
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from prometheus_client import REGISTRY
from psycopg.rows import dict_row
from waiting import eventually

import switchboard
from switchboard import ConfigError, Delivery, StubBroker, SwitchboardError
from switchboard.errors import Conflict
from switchboard.ingest import store
from switchboard.ledger import Ledger, create_todo, migrate
from switchboard.model import Route
from switchboard.normalize import resolve_provider

SOON = timedelta(milliseconds=10)

#: No todo with that title is ever completed.
REFUSE_THE_CURSED = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.state = 'done' AND NEW.title = 'cursed' THEN RAISE EXCEPTION 'not this one'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON todos FOR EACH ROW EXECUTE FUNCTION refuse();
"""


class Team:
    """A broker of the team's own, and the ledger as a session of its own sees it."""

    def __init__(self, url: str) -> None:
        self.broker = StubBroker()
        self.url = url
        self.ledger = Ledger(url)
        migrate(self.ledger)

    def close(self) -> None:
        self.broker.ledger.close()
        self.broker.close()
        self.ledger.close()

    def handler(self, function: Callable[..., Any], **options: Any) -> "dramatiq.Actor[Any, Any]":
        """Works the queue ``work``, retrying at once, where the options do not say otherwise."""
        chosen = {"queue": "work", "min_backoff": SOON, "max_backoff": SOON, **options}
        return switchboard.todo(broker=self.broker, **chosen)(function)

    @contextmanager
    def working(self, threads: int = 2) -> Iterator[None]:
        worker = dramatiq.Worker(self.broker, worker_timeout=100, worker_threads=threads)
        worker.start()
        try:
            yield
        finally:
            worker.stop()

    def make(self, payload: object = None, *, queue: str = "work", **columns: Any) -> int:
        with self.ledger.transaction() as transaction:
            row, _ = create_todo(transaction.connection, queue=queue, title="work", payload=payload, **columns)
        return row.id

    def execute(self, query: str, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def row(self, todo_id: int) -> dict[str, Any]:
        return self.execute("SELECT * FROM todos WHERE id = %s", todo_id)[0]

    def state(self, todo_id: int) -> str:
        return str(self.row(todo_id)["state"])

    def wait(self, todo_id: int, state: str) -> dict[str, Any]:
        """The todo once it is in that state."""
        try:
            eventually(lambda: self.state(todo_id) == state, within=15, what=f"todo {todo_id} is {state}")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.row(todo_id)}") from None
        return self.row(todo_id)

    def wait_waiting(self, todo_id: int) -> dict[str, Any]:
        """The todo once it waits for another attempt, claimed by nobody."""

        def waiting() -> dict[str, Any] | None:
            row = self.row(todo_id)
            return row if row["state"] == "claimed" and row["owner"] is None else None

        row = eventually(waiting, within=15, what=f"todo {todo_id} waits")
        assert row
        return row

    def waits_for(self, todo_id: int) -> float:
        """Seconds between the end of its last attempt and the next."""
        row = self.wait_waiting(todo_id)
        return float((row["lease_expires_at"] - row["updated_at"]).total_seconds())

    def steal(self, todo_id: int) -> None:
        """As a worker that claimed it once its lease had run out."""
        changed = self.execute("UPDATE todos SET owner = 'thief', attempt = 2 WHERE id = %s RETURNING id", todo_id)
        assert changed


@pytest.fixture
def team(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setenv("DATABASE_URL", database_url)
    # What a nudge is worth is test_todo_listener's matter; without one a worker has no listener to end.
    monkeypatch.setenv("SWITCHBOARD_NOTIFY", "off")
    team = Team(database_url)
    yield team
    team.close()


# What a handler gets


def test_it_gets_its_payload_the_headers_and_raw_body_of_its_event_and_its_attempt(team: Team) -> None:
    seen: list[tuple[Any, ...]] = []

    def deploy(todo: switchboard.Todo) -> None:
        seen.append((todo.payload, todo.headers["X-Kind"], todo.headers["Authorization"], todo.body, todo.attempt))

    body = b'{"service":  "checkout", "build": 12345678901234567890}'
    headers = {"X-Kind": "deploy", "Authorization": "Bearer hunter2"}
    delivery = Delivery(body, "1-1", "redis acl: bot", headers, "application/json")
    with team.ledger.transaction() as transaction:
        route = Route(adapter="deploys", queue="work", key_prefix="redis:deploys")
        store(transaction.connection, route, resolve_provider("generic"), [delivery])
    todo_id = team.execute("SELECT id FROM todos")[0]["id"]
    team.handler(deploy)
    with team.working():
        team.wait(todo_id, "done")
    assert seen == [({"service": "checkout", "build": 12345678901234567890}, "deploy", "«redacted»", body, 1)]


def test_a_todo_that_no_delivery_made_has_no_body_and_no_headers(team: Team) -> None:
    seen: list[tuple[Any, ...]] = []
    team.handler(lambda todo: seen.append((todo.payload, dict(todo.headers), todo.body, todo.event)), actor_name="any")
    todo_id = team.make([1, "two"])
    with team.working():
        team.wait(todo_id, "done")
    assert seen == [([1, "two"], {}, None, None)]


def test_a_row_that_another_program_inserted_is_worked(team: Team) -> None:
    seen: list[Any] = []
    team.handler(lambda todo: seen.append(todo.payload), actor_name="any")
    made = team.execute("INSERT INTO todos (queue, title, payload) VALUES ('work', 't', '{\"a\": 1}') RETURNING id")
    with team.working():
        row = team.wait(made[0]["id"], "done")
    assert seen == [{"a": 1}]
    assert (row["attempt"], row["lease_expires_at"], row["completed_at"] is not None) == (1, None, True)


# What it returns


@pytest.mark.parametrize("result", [{"url": "https://x", "n": [1, 2.5, None, True]}, [], "text", 0, False, 10**30])
def test_what_it_returns_is_the_todos_result(team: Team, result: object) -> None:
    team.handler(lambda todo: result, actor_name="any")
    todo_id = team.make()
    with team.working():
        row = team.wait(todo_id, "done")
    assert row["result"] == result
    assert type(row["result"]) is type(result)


def test_a_handler_that_returns_nothing_leaves_no_result_and_no_word(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    team.handler(lambda todo: None, actor_name="any")
    todo_id = team.make()
    with team.working():
        assert team.wait(todo_id, "done")["result"] is None
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(object(), id="an object"),
        pytest.param({1, 2}, id="a set"),
        pytest.param({(1, 2): "x"}, id="a tuple as a key"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param(endless(), id="endless"),
        pytest.param(math.nan, id="NaN"),
        pytest.param({"rate": math.inf}, id="infinity"),
        pytest.param(nested(100_000), id="nested 100,000 levels"),
        pytest.param(10**5_000, id="a number of 5,000 digits"),
    ],
)
def test_what_it_returns_and_is_not_json_is_logged_and_the_todo_is_done_all_the_same(
    team: Team, caplog: pytest.LogCaptureFixture, result: object
) -> None:
    calls: list[int] = []

    def handle(todo: switchboard.Todo) -> object:
        calls.append(todo.id)
        return result

    team.handler(handle)
    todo_id, neighbour = team.make(), team.make()
    with team.working():
        row = team.wait(todo_id, "done")
        team.wait(neighbour, "done")
    assert row["result"] is None
    assert sorted(calls) == sorted([todo_id, neighbour])
    assert any(str(todo_id) in text and "not JSON" in text for text in caplog.messages), caplog.text


def test_a_completion_that_the_database_refuses_does_not_hold_up_its_neighbours(team: Team) -> None:
    team.execute(REFUSE_THE_CURSED)
    team.handler(lambda todo: "did it", actor_name="any")
    todos = [team.make() for _ in range(5)]
    team.execute("UPDATE todos SET title = 'cursed' WHERE id = %s", todos[2])
    with team.working():
        for todo_id in todos:
            if todo_id != todos[2]:
                team.wait(todo_id, "done")
        assert team.state(todos[2]) != "done"


def test_a_completion_that_is_refused_as_the_worker_stops_does_not_cost_its_neighbours_theirs(team: Team) -> None:
    team.execute(REFUSE_THE_CURSED)
    begun, stopping = threading.Barrier(4), threading.Event()

    class Stops(Middleware):
        def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
            stopping.set()

    def handle(todo: switchboard.Todo) -> None:
        begun.wait(15)
        stopping.wait(15)

    team.broker.add_middleware(Stops())
    team.handler(handle)
    todos = [team.make() for _ in range(3)]
    team.execute("UPDATE todos SET title = 'cursed' WHERE id = %s", todos[1])
    with team.working(threads=3):
        begun.wait(15)
    states = [team.state(todo_id) for todo_id in todos]
    assert (states[0], states[2]) == ("done", "done")
    assert states[1] != "done"


def test_a_todo_whose_row_is_deleted_while_its_handler_fails_holds_up_nothing(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> None:
        if todo.payload == "vanishes":
            team.execute("DELETE FROM todos WHERE id = %s", todo.id)
            raise ValueError("and fails")

    team.handler(handle)
    team.make("vanishes")
    first = team.make()
    with team.working(threads=1):
        team.wait(first, "done")
        # Also what comes when its end has been refused once.
        team.wait(team.make(), "done")


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_a_result_with_characters_that_jsonb_cannot_hold_is_stored_without_them(team: Team, text: str) -> None:
    team.handler(lambda todo: {"said": text}, actor_name="any")
    todo_id = team.make()
    with team.working():
        row = team.wait(todo_id, "done")
    assert row["result"] == {"said": "a\ufffdb"}


def test_a_team_with_the_results_middleware_gets_the_same(team: Team) -> None:
    team.broker.add_middleware(Results(backend=StubBackend()))  # type: ignore[no-untyped-call]
    team.handler(lambda todo: {"a": 1}, actor_name="any", store_results=True)
    todo_id = team.make()
    with team.working():
        assert team.wait(todo_id, "done")["result"] == {"a": 1}


# It raises


def test_a_todo_whose_handler_raises_waits_and_is_failed_in_its_last_attempt(team: Team) -> None:
    attempts: list[int] = []

    def handle(todo: switchboard.Todo) -> None:
        attempts.append(todo.attempt)
        raise ValueError("no deploy today")

    team.handler(handle)
    todo_id = team.make(max_attempts=3)
    with team.working():
        row = team.wait(todo_id, "failed")
    assert attempts == [1, 2, 3]
    assert row["last_error"] == "ValueError: no deploy today"
    assert (row["owner"], row["lease_expires_at"], row["result"]) == (None, None, None)
    assert row["completed_at"] is not None


def test_what_succeeds_in_the_end_is_done_and_has_no_error(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> str:
        if todo.attempt < 2:
            raise ValueError("not yet")
        return f"attempt {todo.attempt}"

    team.handler(handle)
    todo_id = team.make()
    with team.working():
        row = team.wait(todo_id, "done")
    assert (row["result"], row["last_error"], row["attempt"]) == ("attempt 2", None, 2)


def test_the_backoff_is_settable_exponential_and_jittered(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> None:
        raise ValueError

    team.handler(handle, min_backoff=timedelta(minutes=1), max_backoff=timedelta(minutes=30))
    todos = [team.make() for _ in range(6)]
    late, latest = team.make(max_attempts=20), team.make(max_attempts=20)
    team.execute("UPDATE todos SET attempt = 3 WHERE id = %s", late)
    team.execute("UPDATE todos SET attempt = 15 WHERE id = %s", latest)
    with team.working():
        first = [team.waits_for(todo_id) for todo_id in todos]
        assert all(60 <= seconds <= 120 for seconds in first), first
        assert len(set(first)) > 1
        assert 8 * 60 <= team.waits_for(late) <= 16 * 60
        assert 15 * 60 <= team.waits_for(latest) <= 30 * 60
        # It is claimed by nobody meanwhile.
        assert {team.row(todo_id)["owner"] for todo_id in todos} == {None}


def test_the_backoff_is_about_15_seconds_where_nobody_says(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> None:
        raise ValueError

    switchboard.todo(queue="work", broker=team.broker)(handle)
    todo_id = team.make()
    with team.working():
        assert 15 <= team.waits_for(todo_id) <= 30


def test_the_delay_of_a_dramatiq_retry_is_how_long_it_waits(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> None:
        raise dramatiq.Retry("the API says", delay=90_000)

    team.handler(handle)
    todo_id = team.make()
    with team.working():
        assert team.waits_for(todo_id) == pytest.approx(90, abs=0.5)


def test_a_dramatiq_retry_with_a_delay_of_nothing_waits_for_nothing(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> str:
        if todo.attempt == 1:
            raise dramatiq.Retry(delay=0)
        return "second"

    team.handler(handle, min_backoff=timedelta(hours=1), max_backoff=timedelta(hours=1))
    todo_id = team.make()
    with team.working():
        eventually(lambda: team.row(todo_id)["state"] == "done", within=10, what="it is tried again at once")


def test_a_dramatiq_retry_without_delay_waits_as_any_error_does(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> None:
        raise dramatiq.Retry

    team.handler(handle, min_backoff=timedelta(minutes=1), max_backoff=timedelta(hours=1))
    todo_id = team.make()
    with team.working():
        assert 60 <= team.waits_for(todo_id) <= 120


class Refused(Exception):
    pass


@pytest.mark.parametrize("throws", [Refused, (KeyError, Refused)])
def test_an_error_in_throws_fails_it_for_good_at_once(
    team: Team, throws: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(todo: switchboard.Todo) -> None:
        raise Refused("no such service")

    team.handler(handle, throws=throws)
    todo_id = team.make()
    with team.working():
        row = team.wait(todo_id, "failed")
    assert (row["attempt"], row["last_error"]) == (1, "Refused: no such service")
    assert "Traceback" not in caplog.text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (ValueError("a\x00b \ud800"), "ValueError: a\ufffdb \ufffd"),
        (ValueError("postgresql://bot:hunter2@db/x"), "ValueError: postgresql://bot:«redacted»@db/x"),
        (ValueError("password=hunter2"), "ValueError: password=«redacted»"),
        (Unspeakable(), "Unspeakable"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_its_error_is_stored_as_text_that_is_safe(team: Team, error: BaseException, stored: str) -> None:
    def handle(todo: switchboard.Todo) -> None:
        raise error

    team.handler(handle)
    todo_id = team.make(max_attempts=1)
    with team.working():
        row = team.wait(todo_id, "failed")
    assert row["last_error"].strip() == stored.strip()


def test_a_very_long_error_is_cut_and_does_not_hold_up_its_neighbour(team: Team) -> None:
    def handle(todo: switchboard.Todo) -> None:
        if todo.payload:
            raise ValueError("x" * 5_000_000)

    team.handler(handle)
    todo_id, neighbour = team.make(True, max_attempts=1), team.make(False)
    with team.working():
        row = team.wait(todo_id, "failed")
        team.wait(neighbour, "done")
    assert len(row["last_error"]) <= 2_000


# It is a real Dramatiq actor


def test_its_queue_carries_the_todo_queues_name(team: Team) -> None:
    actor = team.handler(lambda todo: None, actor_name="deploy", priority=7, time_limit=1234)
    assert isinstance(actor, dramatiq.Actor)
    assert (actor.queue_name, actor.actor_name, actor.priority) == ("todo.work", "deploy", 7)
    assert actor.options["time_limit"] == 1234
    assert team.broker.get_declared_queues() == {"todo.work"}


def test_a_handler_beyond_its_time_limit_is_interrupted_and_its_todo_fails(team: Team) -> None:
    interrupted: list[bool] = []

    def handle(todo: switchboard.Todo) -> None:
        try:
            while True:
                time.sleep(0.01)
        except TimeLimitExceeded:
            interrupted.append(True)
            raise

    team.handler(handle, time_limit=50)
    # As the command does: it starts the middleware's clock.
    team.broker.emit_after("process_boot")
    todo_id = team.make(max_attempts=1)
    with team.working():
        row = team.wait(todo_id, "failed")
    assert interrupted == [True]
    assert row["last_error"].startswith("TimeLimitExceeded")


def test_of_two_queues_that_wait_the_one_of_lower_priority_goes_first(team: Team) -> None:
    order: list[str] = []
    free = threading.Event()
    busy = threading.Event()

    def block(todo: switchboard.Todo) -> None:
        busy.set()
        free.wait(15)

    team.handler(block, queue="block")
    team.handler(lambda todo: order.append("later"), queue="later", actor_name="later", priority=10)
    team.handler(lambda todo: order.append("first"), queue="first", actor_name="first", priority=-10)
    team.make(queue="block")
    with team.working(threads=1):
        assert busy.wait(15)
        later = team.make(queue="later")
        team.wait(later, "claimed")
        first = team.make(queue="first")
        team.wait(first, "claimed")
        free.set()
        team.wait(first, "done")
        team.wait(later, "done")
    assert order == ["first", "later"]


def test_coroutines_work_with_dramatiqs_own_middleware(team: Team) -> None:
    team.broker.add_middleware(AsyncIO())

    async def deploy(todo: switchboard.Todo) -> dict[str, Any]:
        await asyncio.sleep(0)
        if todo.attempt == 1:
            raise ValueError("not yet")
        return {"attempt": todo.attempt}

    team.handler(deploy)
    todos = [team.make() for _ in range(5)]
    with team.working():
        rows = [team.wait(todo_id, "done") for todo_id in todos]
    assert {row["attempt"] for row in rows} == {2}
    assert {row["result"]["attempt"] for row in rows} == {2}


def test_a_second_handler_for_a_queue_is_refused(team: Team) -> None:
    team.handler(lambda todo: None, actor_name="one")
    with pytest.raises(ConfigError, match=r"'work'.*already"):
        team.handler(lambda todo: None, actor_name="two")
    team.handler(lambda todo: None, actor_name="three", queue="other")


def test_a_queue_that_no_dramatiq_queue_can_be_named_for_is_refused(team: Team) -> None:
    for name in ("", "a b", "ä", "x" * 201, "a/b"):
        with pytest.raises(ConfigError, match="queue"):
            team.handler(lambda todo: None, queue=name)


def test_a_handler_that_dramatiq_refuses_leaves_its_queue_free(team: Team) -> None:
    with pytest.raises(ValueError, match="timelimit"):
        team.handler(lambda todo: None, actor_name="typo", timelimit=5)
    assert team.broker.get_declared_queues() == set()
    team.handler(lambda todo: None, actor_name="right")
    todo_id = team.make()
    with team.working():
        team.wait(todo_id, "done")


def test_sending_to_a_handler_is_refused_and_says_what_to_do(team: Team) -> None:
    actor = team.handler(lambda todo: None, actor_name="deploy")
    sends: list[Callable[[], object]] = [
        lambda: actor.send({"a": 1}),
        lambda: actor.send_with_options(args=({"a": 1},), delay=1_000),
        lambda: team.broker.enqueue(actor.message({"a": 1})),
    ]
    for send in sends:
        with pytest.raises(SwitchboardError, match=r"todo\.work.*switchboard\.create_todo\.send\(queue='work'"):
            send()


# What does not complete a todo


class Interfere(Middleware):
    """Does something to the first messages of todos, then lets them be."""

    def __init__(self, times: int, interference: Callable[[Any], None]) -> None:
        self.left = times
        self.interference = interference

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        if self.left:
            self.left -= 1
            self.interference(message)


class NotToday(MiddlewareError):
    pass


def skip(message: Any) -> None:
    raise SkipMessage("not today")


def skip_as_failed(message: Any) -> None:
    message.fail()
    raise SkipMessage("not today")


def refuse(message: Any) -> None:
    raise NotToday


def grow_old(message: Any) -> None:
    """It has been in the worker's queue for so long."""
    message.message_timestamp = message.message_timestamp - 3_600_000


@pytest.mark.parametrize("interference", [skip, skip_as_failed, refuse, grow_old])
def test_a_todo_that_a_middleware_skips_is_released_with_no_attempt_spent(
    team: Team, interference: Callable[[Any], None]
) -> None:
    meddler = Interfere(1, interference)
    team.broker.add_middleware(meddler, before=type(team.broker.middleware[0]))
    attempts: list[int] = []

    def handle(todo: switchboard.Todo) -> None:
        attempts.append(todo.attempt)

    team.handler(handle, max_age=60_000)
    # One attempt: if it were spent, there would be no other.
    todo_id = team.make(max_attempts=1)
    with team.working():
        released = team.wait_waiting(todo_id)
        assert meddler.left == 0
        assert (released["attempt"], released["completed_at"], attempts) == (0, None, [])
        row = team.wait(todo_id, "done")
    assert attempts == [1]
    assert (row["attempt"], row["last_error"]) == (1, None)


def test_a_handler_that_raises_skip_message_itself_does_not_complete_its_todo(team: Team) -> None:
    calls: list[int] = []

    def handle(todo: switchboard.Todo) -> None:
        calls.append(todo.attempt)
        if len(calls) == 1:
            raise SkipMessage("not me")

    team.handler(handle)
    todo_id = team.make()
    with team.working():
        assert team.wait_waiting(todo_id)["completed_at"] is None
        team.wait(todo_id, "done")
    assert len(calls) == 2


def test_a_todo_whose_actor_is_unknown_is_released_with_no_attempt_spent(team: Team) -> None:
    actor = team.handler(lambda todo: None, actor_name="deploy")
    first = team.make()
    with team.working():
        team.wait(first, "done")
        del team.broker.actors["deploy"]
        todo_id = team.make(max_attempts=1)
        assert team.wait_waiting(todo_id)["attempt"] == 0
        team.broker.actors["deploy"] = actor
        assert team.wait(todo_id, "done")["attempt"] == 1


def test_a_teams_global_retry_rule_makes_no_copy_and_completes_nothing(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    retries = Retries(max_retries=50, min_backoff=1, max_backoff=10, retry_when=lambda *_: True)
    team.broker.middleware = [m for m in team.broker.middleware if not isinstance(m, Retries)]
    team.broker.add_middleware(retries)
    enqueued: list[Any] = []

    class Watch(Middleware):
        def before_enqueue(self, broker: dramatiq.Broker, message: Any, delay: int | None) -> None:
            enqueued.append(message)

    team.broker.add_middleware(Watch())
    attempts: list[int] = []

    def handle(todo: switchboard.Todo) -> None:
        attempts.append(todo.attempt)
        raise ValueError("no")

    team.handler(handle)
    todo_id = team.make(max_attempts=2)
    with team.working():
        row = team.wait(todo_id, "failed")
    assert attempts == [1, 2]
    assert (row["last_error"], enqueued) == ("ValueError: no", [])
    assert "nothing can be enqueued" not in caplog.text


def test_a_lease_that_went_to_another_is_noticed_and_nothing_of_it_is_overwritten(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[object] = []

    def handle(todo: switchboard.Todo) -> str:
        todo.heartbeat()
        assert not todo.is_lost
        team.steal(todo.id)
        try:
            todo.heartbeat()
        except Conflict as conflict:
            heard.append((type(conflict), todo.is_lost))
        return "mine"

    def lost() -> float:
        return REGISTRY.get_sample_value("switchboard_leases_lost_total", {"queue": "work"}) or 0

    before = lost()
    team.handler(handle)
    todo_id = team.make()
    with team.working():
        eventually(lambda: f"todo {todo_id} of queue work" in caplog.text, what="the lost lease is logged")
        assert lost() == before + 1
        row = team.row(todo_id)
    assert heard == [(Conflict, True)]
    assert (row["state"], row["owner"], row["attempt"], row["result"]) == ("claimed", "thief", 2, None)
    record = next(record for record in caplog.records if "lease is another's" in record.getMessage())
    assert (record.__dict__["queue"], record.__dict__["todo_id"]) == ("work", todo_id)


def test_a_handler_that_raises_once_its_lease_is_lost_changes_nothing(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(todo: switchboard.Todo) -> None:
        team.steal(todo.id)
        raise ValueError("too late")

    team.handler(handle)
    todo_id = team.make(max_attempts=1)
    with team.working():
        eventually(lambda: "lease is another's" in caplog.text, what="the lost lease is logged")
        row = team.row(todo_id)
    assert (row["state"], row["owner"], row["last_error"]) == ("claimed", "thief", None)


def test_a_heartbeat_extends_the_lease(team: Team) -> None:
    leases: list[float] = []

    def handle(todo: switchboard.Todo) -> None:
        team.execute("UPDATE todos SET lease_expires_at = now() + interval '5 s' WHERE id = %s", todo.id)
        todo.heartbeat()
        left = team.execute("SELECT lease_expires_at - now() AS left FROM todos WHERE id = %s", todo.id)
        leases.append(left[0]["left"].total_seconds())

    team.handler(handle, lease=timedelta(minutes=2))
    todo_id = team.make()
    with team.working():
        team.wait(todo_id, "done")
    assert leases[0] == pytest.approx(120, abs=3)


def test_a_todo_that_was_cancelled_while_its_handler_ran_stays_cancelled(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(todo: switchboard.Todo) -> str:
        with team.ledger.transaction() as transaction:
            switchboard.ledger.cancel_todo(transaction.connection, todo.id)
        return "done after all"

    team.handler(handle)
    todo_id = team.make()
    with team.working():
        eventually(lambda: f"todo {todo_id} of queue work" in caplog.text, what="it is logged")
        row = team.row(todo_id)
    assert (row["state"], row["last_error"], row["result"]) == ("failed", "cancelled", None)


def test_a_todo_with_an_assignee_is_worked_by_that_one_alone(team: Team) -> None:
    team.handler(lambda todo: todo.assignee, actor_name="ada", assignee="ada")
    bobs, adas, anyones = team.make(assignee="bob"), team.make(assignee="ada"), team.make()
    with team.working():
        assert team.wait(adas, "done")["result"] == "ada"
        team.wait(anyones, "done")
    assert team.state(bobs) == "pending"


def test_todos_are_worked_oldest_first(team: Team) -> None:
    order: list[int] = []
    team.handler(lambda todo: order.append(todo.id), actor_name="any")
    todos = [team.make() for _ in range(30)]
    team.execute("UPDATE todos SET created_at = created_at - interval '1 hour' WHERE id = %s", todos[-1])
    with team.working(threads=1):
        for todo_id in todos:
            team.wait(todo_id, "done")
    assert order == [todos[-1], *todos[:-1]]


# One transaction


def own_transaction(team: Team, function: Callable[[switchboard.Todo], Any], **options: Any) -> None:
    team.execute("CREATE TABLE written (word text)")
    team.handler(function, store_then_ack=True, **options)


def write(word: str) -> None:
    switchboard.transaction().execute("INSERT INTO written VALUES (%s)", (word,))


def written(team: Team) -> list[str]:
    return [row["word"] for row in team.execute("SELECT word FROM written ORDER BY word")]


def test_what_it_writes_and_its_completion_commit_together(team: Team) -> None:
    seen_inside: list[object] = []

    def charge(todo: switchboard.Todo) -> dict[str, Any]:
        write("charged")
        seen_inside.append((written(team), team.state(todo.id)))
        return {"ok": True}

    own_transaction(team, charge)
    todo_id = team.make()
    with team.working():
        row = team.wait(todo_id, "done")
        # The very same transaction wrote both.
        query = "SELECT count(*) AS n FROM todos, written WHERE todos.xmin = written.xmin AND todos.id = %s"
        assert team.execute(query, todo_id)[0]["n"] == 1
    assert seen_inside == [([], "claimed")]
    assert row["result"] == {"ok": True}
    assert written(team) == ["charged"]


def test_what_it_wrote_before_it_raised_is_rolled_back_and_the_todo_fails(team: Team) -> None:
    def charge(todo: switchboard.Todo) -> None:
        write(f"attempt {todo.attempt}")
        if todo.attempt == 1:
            raise ValueError("no")

    own_transaction(team, charge, min_backoff=timedelta(seconds=2), max_backoff=timedelta(seconds=2))
    todo_id = team.make()
    with team.working():
        row = team.wait_waiting(todo_id)
        assert (row["last_error"], written(team)) == ("ValueError: no", [])
        team.wait(todo_id, "done")
    assert written(team) == ["attempt 2"]


def test_nothing_is_stored_of_a_handler_whose_lease_was_stolen(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    def charge(todo: switchboard.Todo) -> str:
        write("charged twice")
        team.steal(todo.id)
        return "mine"

    own_transaction(team, charge)
    todo_id = team.make()
    with team.working():
        eventually(lambda: "todo of queue" in caplog.text or "lease is another's" in caplog.text, what="it is logged")
        eventually(lambda: "by this worker" in caplog.text, what="the worker has given it up")
        row = team.row(todo_id)
    assert written(team) == []
    assert (row["state"], row["owner"], row["result"], row["last_error"]) == ("claimed", "thief", None, None)


def test_a_commit_that_is_refused_does_not_complete_the_todo(team: Team) -> None:
    team.execute("CREATE TABLE target (id int PRIMARY KEY)")
    team.execute("CREATE TABLE late (id int REFERENCES target DEFERRABLE INITIALLY DEFERRED)")

    def charge(todo: switchboard.Todo) -> None:
        write("rolled back with it")
        switchboard.transaction().execute("INSERT INTO late VALUES (1)")

    own_transaction(team, charge)
    todo_id = team.make(max_attempts=1)
    with team.working():
        row = team.wait(todo_id, "failed")
    assert written(team) == []
    assert "late" in row["last_error"]


def test_a_result_that_is_not_json_commits_as_null_with_what_it_wrote(team: Team) -> None:
    def charge(todo: switchboard.Todo) -> object:
        write("charged")
        return math.nan

    own_transaction(team, charge)
    todo_id = team.make()
    with team.working():
        assert team.wait(todo_id, "done")["result"] is None
    assert written(team) == ["charged"]


def test_a_todo_made_in_its_transaction_is_worked_after_the_commit_or_never_made(team: Team) -> None:
    def charge(todo: switchboard.Todo) -> None:
        create_todo(switchboard.transaction(), queue="next", title=f"after attempt {todo.attempt}")
        if todo.attempt == 1:
            raise ValueError("no")

    own_transaction(team, charge)
    team.handler(lambda todo: todo.title, queue="next", actor_name="next")
    todo_id = team.make()
    with team.working():
        team.wait(todo_id, "done")
        query = "SELECT title, state, result FROM todos WHERE queue = 'next'"
        eventually(lambda: [row["state"] for row in team.execute(query)] == ["done"], what="the next one is done")
    assert team.execute(query)[0]["result"] == "after attempt 2"


def test_a_coroutine_handler_is_refused_by_name(team: Team) -> None:
    async def charge(todo: switchboard.Todo) -> None:
        pass

    with pytest.raises(ConfigError, match=r"charge.*coroutine"):
        team.handler(charge, store_then_ack=True)
