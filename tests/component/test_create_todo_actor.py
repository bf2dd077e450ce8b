"""``switchboard.create_todo``: a todo made by a message from anywhere that reaches the team's Dramatiq transport."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import psycopg
import pytest
import redis
from dramatiq.middleware import CurrentMessage
from psycopg.rows import dict_row
from waiting import eventually

import switchboard
from switchboard import RedisBroker, StubBroker
from switchboard.create_todo_actor import create_todo_actor
from switchboard.ledger import Ledger, migrate

QUEUE = "dramatiq:switchboard.create_todo"

#: A process that has nothing of the team's but the address of its transport, and no DATABASE_URL.
PRODUCER = """
import json, os, sys
import dramatiq, switchboard

dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["TEAM_URL"]))
for options in json.loads(sys.argv[1]):
    print(switchboard.create_todo.send(**options).message_id)
"""

#: The same, with the broker from the environment.
BARE_PRODUCER = """
import switchboard

print(switchboard.create_todo.send(queue="deploys", payload={"service": "checkout"}).message_id)
"""


def todos(url: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM todos ORDER BY id").fetchall()


@contextmanager
def working(broker: dramatiq.Broker) -> Iterator[None]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


@pytest.fixture
def migrated(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DATABASE_URL", database_url)
    ledger = Ledger(database_url)
    migrate(ledger)
    ledger.close()
    return database_url


@pytest.fixture
def broker(migrated: str, redis_url: str) -> Iterator[RedisBroker]:
    broker = RedisBroker(url=redis_url)
    yield broker
    broker.ledger.close()
    broker.close()
    broker.client.close()


def produce(folder: Path, code: str, *arguments: str, **env: str) -> list[str]:
    """Runs a producer that has no ledger; the ids of the messages it sent."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(Path(switchboard.__file__).parents[1]), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def left(client: Any) -> int:
    """Messages that are not acknowledged: in the queue, or with a worker."""
    return int(client.hlen(f"{QUEUE}.msgs"))


def send_again(broker: dramatiq.Broker, message: "dramatiq.Message[Any]") -> None:
    """As a transport that delivers a message again: it has the same id."""
    broker.enqueue(message)


def test_a_producer_that_has_nothing_but_its_broker_makes_todos(
    broker: RedisBroker, tmp_path: Path, redis_url: str, migrated: str, redis_client: Any
) -> None:
    options: list[dict[str, Any]] = [
        {"queue": "deploys", "payload": {"service": "checkout", "build": 12345678901234567890}},
        {
            "queue": "bills",
            "payload": [1, None],
            "title": "A bill",
            "kind": "bill",
            "idempotency_key": "bill 7",
            "assignee": "ada",
            "max_attempts": 2,
        },
        {"queue": "empty"},
    ]
    sent = produce(tmp_path, PRODUCER, json.dumps(options), TEAM_URL=redis_url)
    create_todo_actor(broker)
    with working(broker):
        eventually(lambda: len(todos(migrated)) == 3, what="they are made")
        eventually(lambda: left(redis_client) == 0, what="they are acknowledged")
    made = {row["queue"]: row for row in todos(migrated)}
    assert made["deploys"]["payload"] == options[0]["payload"]
    assert made["deploys"]["idempotency_key"] == f"dramatiq:{sent[0]}"
    assert (made["deploys"]["state"], made["deploys"]["attempt"], made["deploys"]["max_attempts"]) == ("pending", 0, 5)
    bill = made["bills"]
    assert (bill["title"], bill["kind"], bill["idempotency_key"]) == ("A bill", "bill", "bill 7")
    assert (bill["payload"], bill["assignee"], bill["max_attempts"]) == ([1, None], "ada", 2)
    assert made["empty"]["payload"] is None
    assert made["empty"]["title"]


def test_a_producer_may_take_its_broker_from_the_environment(
    broker: RedisBroker, tmp_path: Path, redis_url: str, migrated: str
) -> None:
    produce(tmp_path, BARE_PRODUCER, SWITCHBOARD_BROKER_URL=redis_url)
    create_todo_actor(broker)
    with working(broker):
        eventually(lambda: todos(migrated), what="it is made")


def test_a_message_that_is_delivered_twice_makes_one_todo(
    broker: RedisBroker, migrated: str, redis_client: Any
) -> None:
    actor = create_todo_actor(broker)
    message = actor.send(queue="deploys", payload=1)
    send_again(broker, message)
    other = actor.send(queue="deploys", payload=1)
    with working(broker):
        eventually(lambda: left(redis_client) == 0, what="all are acknowledged")
        send_again(broker, message)
        eventually(lambda: left(redis_client) == 0, what="so is the last one")
    keys = [row["idempotency_key"] for row in todos(migrated)]
    assert sorted(keys) == sorted([f"dramatiq:{message.message_id}", f"dramatiq:{other.message_id}"])


def test_two_messages_with_one_key_make_one_todo_a_queue(broker: RedisBroker, migrated: str, redis_client: Any) -> None:
    actor = create_todo_actor(broker)
    for queue in ("deploys", "deploys", "bills"):
        actor.send(queue=queue, payload=queue, idempotency_key="order 7")
    with working(broker):
        eventually(lambda: left(redis_client) == 0, what="all are acknowledged")
    made = [(row["queue"], row["idempotency_key"]) for row in todos(migrated)]
    assert sorted(made) == [("bills", "order 7"), ("deploys", "order 7")]


@pytest.mark.parametrize("key", [None, "nightly"])
def test_a_message_that_is_delivered_again_after_its_todo_is_done_makes_no_second_one(
    broker: RedisBroker, migrated: str, redis_client: Any, key: str | None
) -> None:
    """Its worker was killed between the commit and the acknowledgement, and the todo was quick."""
    actor = create_todo_actor(broker)
    calls: list[int] = []
    switchboard.todo(queue="deploys", broker=broker, actor_name="deploy")(lambda todo: calls.append(todo.id))
    message = actor.send(queue="deploys", idempotency_key=key)
    with working(broker):
        eventually(lambda: [row["state"] for row in todos(migrated)] == ["done"], what="it is done")
        send_again(broker, message)
        eventually(lambda: left(redis_client) == 0, what="it is acknowledged again")
    assert len(todos(migrated)) == 1
    assert len(calls) == 1


def test_a_message_that_found_its_keys_todo_makes_none_when_it_is_delivered_again_after_that_is_done(
    broker: RedisBroker, migrated: str, redis_client: Any
) -> None:
    actor = create_todo_actor(broker)
    actor.send(queue="deploys", idempotency_key="nightly")
    with working(broker):
        eventually(lambda: todos(migrated), what="it is made")
        message = actor.send(queue="deploys", idempotency_key="nightly")
        eventually(lambda: left(redis_client) == 0, what="the other has found it")
        with psycopg.connect(migrated, autocommit=True) as connection:
            connection.execute("UPDATE todos SET state = 'done', completed_at = now()")
        send_again(broker, message)
        eventually(lambda: left(redis_client) == 0, what="it is acknowledged again")
    assert len(todos(migrated)) == 1


def test_a_key_can_be_used_again_once_its_todo_is_done(broker: RedisBroker, migrated: str) -> None:
    actor = create_todo_actor(broker)
    switchboard.todo(queue="deploys", broker=broker, actor_name="deploy")(lambda todo: None)
    with working(broker):
        for count in (1, 2):
            actor.send(queue="deploys", idempotency_key="nightly")
            states = ["done"] * count
            eventually(lambda: [row["state"] for row in todos(migrated)] == states, what=f"{count} are done")  # noqa: B023


def test_its_message_is_acknowledged_only_after_the_commit(
    broker: RedisBroker, migrated: str, redis_client: Any
) -> None:
    actor = create_todo_actor(broker)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT%'"
    seen_at_ack: list[int] = []

    class Watch(dramatiq.Middleware):
        def before_ack(self, broker: dramatiq.Broker, message: Any) -> None:
            seen_at_ack.append(len(todos(migrated)))

    broker.add_middleware(Watch())
    with psycopg.connect(migrated, autocommit=True) as other, working(broker):

        def is_blocked() -> bool:
            row = other.execute(blocked.encode()).fetchone()
            return bool(row and row[0])

        with psycopg.connect(migrated) as holder:
            holder.execute("LOCK TABLE todos IN SHARE MODE")
            actor.send(queue="deploys", payload=1)
            eventually(is_blocked, what="the insert waits for the lock")
            assert left(redis_client) == 1
            assert todos(migrated) == []
        eventually(lambda: left(redis_client) == 0, what="it is acknowledged")
    assert seen_at_ack == [1]
    assert len(todos(migrated)) == 1


def test_a_message_whose_todo_cannot_be_committed_is_not_acknowledged_as_done(
    broker: RedisBroker, migrated: str, redis_client: redis.Redis
) -> None:
    refuse = """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON todos DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION refuse();
    """
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute(refuse)
        actor = create_todo_actor(broker)
        ids: list[str] = []

        class Watch(dramatiq.Middleware):
            def after_enqueue(self, broker: dramatiq.Broker, message: Any, delay: int | None) -> None:
                ids.append(message.message_id)

        broker.add_middleware(Watch())
        sent = actor.send_with_options(kwargs={"queue": "deploys"}, min_backoff=1, max_backoff=10)
        with working(broker):
            eventually(lambda: len(ids) >= 3, within=20, what="Dramatiq has made copies to try again")
            assert todos(migrated) == []
            # Each copy is the same message: so is the todo's key.
            assert set(ids) == {sent.message_id}
            connection.execute("DROP TRIGGER refuse ON todos")
            eventually(lambda: todos(migrated), within=20, what="a retry makes it")
    assert len(todos(migrated)) == 1


def test_it_is_declared_once_and_brings_what_it_needs(migrated: str) -> None:
    broker = StubBroker()
    assert not any(isinstance(middleware, CurrentMessage) for middleware in broker.middleware)
    actor = create_todo_actor(broker)
    assert create_todo_actor(broker) is actor
    assert any(isinstance(middleware, CurrentMessage) for middleware in broker.middleware)
    assert (actor.actor_name, actor.queue_name) == ("switchboard.create_todo", "switchboard.create_todo")
    with working(broker):
        message = actor.send(queue="deploys")
        eventually(lambda: todos(migrated), what="it is made")
    assert todos(migrated)[0]["idempotency_key"] == f"dramatiq:{message.message_id}"
    broker.ledger.close()
    broker.close()


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ({"text": "a\x00b"}, {"text": "a\ufffdb"}),
        ({"text": "\ud800"}, {"text": "\ufffd"}),
        (10**30, 10**30),
        ([], []),
        ("", ""),
    ],
)
def test_payloads_that_json_can_say_are_stored(migrated: str, payload: object, stored: object) -> None:
    broker = StubBroker()
    actor = create_todo_actor(broker)
    with working(broker):
        actor.send(queue="deploys", payload=payload)
        eventually(lambda: todos(migrated), what="it is made")
    assert todos(migrated)[0]["payload"] == stored
    broker.ledger.close()
    broker.close()
