"""A team's own actors with ``store_then_ack=True``: their transaction commits before their message is acknowledged."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import dramatiq
import psycopg
import pytest
import redis
from dramatiq.brokers.stub import StubBroker as PlainStubBroker
from waiting import eventually

import switchboard
from switchboard import RedisBroker, StubBroker
from switchboard.errors import ConfigError, LedgerError
from switchboard.ledger import Ledger
from switchboard.middleware import StoreThenAck

Acked = list[tuple[str, int]]


class _Watch(dramatiq.Middleware):
    """Notes, at each acknowledgement, how many rows a session of its own can see."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acked: Acked = []

    def before_ack(self, broker: dramatiq.Broker, message: Any) -> None:
        self.acked.append((message.actor_name, written(self.url)))

    def before_nack(self, broker: dramatiq.Broker, message: Any) -> None:
        self.acked.append((f"nack {message.actor_name}", written(self.url)))


def written(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM written").fetchone()
    assert row
    return int(row[0])


@pytest.fixture
def broker(
    request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StubBroker | RedisBroker]:
    """A broker of each kind, with the ledger at the test's database, where a table of the team's waits."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE written (word text)")
    redis_wanted = request.param == "redis"
    broker = RedisBroker(url=request.getfixturevalue("redis_url")) if redis_wanted else StubBroker()
    yield broker
    broker.ledger.close()
    broker.close()
    if isinstance(broker, RedisBroker):
        broker.client.close()


both = pytest.mark.parametrize("broker", ["stub", "redis"], indirect=True)
stub = pytest.mark.parametrize("broker", ["stub"], indirect=True)


@contextmanager
def working(broker: dramatiq.Broker) -> Iterator[None]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def write(word: str) -> None:
    switchboard.transaction().execute("INSERT INTO written VALUES (%s)", (word,))


def declare(broker: dramatiq.Broker, function: Callable[..., Any], **options: Any) -> "dramatiq.Actor[..., Any]":
    actor: dramatiq.Actor[..., Any] = dramatiq.actor(broker=broker, store_then_ack=True, **options)(function)
    return actor


@both
def test_what_an_actor_writes_is_committed_when_its_message_is_acknowledged(
    broker: StubBroker | RedisBroker, database_url: str
) -> None:
    watch = _Watch(database_url)
    broker.add_middleware(watch)
    seen_inside: list[int] = []

    def charge(order: str) -> None:
        write(order)
        seen_inside.append(written(database_url))

    actor = declare(broker, charge)
    with working(broker):
        actor.send("order 7")
        eventually(lambda: watch.acked, what="it is acknowledged")
    assert watch.acked == [("charge", 1)]
    assert seen_inside == [0], "nobody else sees it before the commit"


@both
def test_what_an_actor_wrote_before_it_raised_is_rolled_back(
    broker: StubBroker | RedisBroker, database_url: str
) -> None:
    watch = _Watch(database_url)
    broker.add_middleware(watch)

    def charge() -> None:
        write("half done")
        raise ValueError("no")

    actor = declare(broker, charge, max_retries=0)
    with working(broker):
        actor.send()
        eventually(lambda: watch.acked, what="it is done with")
    assert written(database_url) == 0
    assert watch.acked == [("nack charge", 0)]


@both
def test_a_retry_starts_a_transaction_of_its_own(broker: StubBroker | RedisBroker, database_url: str) -> None:
    tries: list[int] = []

    def charge() -> None:
        tries.append(written(database_url))
        write(f"try {len(tries)}")
        if len(tries) < 3:
            raise ValueError("not yet")

    actor = declare(broker, charge, max_retries=5, min_backoff=1, max_backoff=10)
    with working(broker):
        actor.send()
        eventually(lambda: written(database_url) == 1, within=20, what="the last try is committed")
    assert tries == [0, 0, 0]


@stub
def test_an_actor_that_raises_after_a_commit_that_is_refused_is_not_acknowledged_as_done(
    broker: StubBroker, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE target (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE late (id int REFERENCES target DEFERRABLE INITIALLY DEFERRED)")
    watch = _Watch(database_url)
    broker.add_middleware(watch)

    def charge() -> None:
        write("rolled back with it")
        switchboard.transaction().execute("INSERT INTO late VALUES (1)")

    actor = declare(broker, charge, max_retries=0)
    with working(broker):
        actor.send()
        eventually(lambda: watch.acked, what="it is done with")
    assert watch.acked == [("nack charge", 0)]


@stub
def test_an_actor_that_swallows_the_error_of_a_statement_is_not_acknowledged_as_done(
    broker: StubBroker, database_url: str
) -> None:
    watch = _Watch(database_url)
    broker.add_middleware(watch)

    def charge() -> None:
        write("lost with the transaction")
        try:
            switchboard.transaction().execute("SELECT 1 / 0")
        except psycopg.Error:
            return

    actor = declare(broker, charge, max_retries=0)
    with working(broker):
        actor.send()
        eventually(lambda: watch.acked, what="it is done with")
    assert written(database_url) == 0
    assert watch.acked == [("nack charge", 0)]


@stub
def test_an_actor_keeps_its_name_its_arguments_and_its_result(broker: StubBroker, database_url: str) -> None:
    def add(first: int, *, second: int = 2) -> int:
        """Adds."""
        write("called")
        return first + second

    actor = declare(broker, add)
    assert actor(1, second=4) == 5, "an actor can be called like its function"
    assert written(database_url) == 1
    assert (actor.actor_name, actor.fn.__doc__) == ("add", "Adds.")


@stub
def test_two_actors_at_once_have_a_transaction_each(broker: StubBroker, database_url: str) -> None:
    backends: list[int] = []

    def slow() -> None:
        backends.append(switchboard.transaction().info.backend_pid)
        write("one")
        eventually(lambda: len(backends) == 2, what="both are in their transactions")

    actor = declare(broker, slow)
    with working(broker):
        actor.send()
        actor.send()
        eventually(lambda: written(database_url) == 2, what="both have committed")
    assert len(set(backends)) == 2


@stub
def test_an_actor_without_the_option_has_no_transaction(broker: StubBroker) -> None:
    @dramatiq.actor(broker=broker)
    def plain() -> None:
        switchboard.transaction()

    with pytest.raises(LedgerError, match="store_then_ack"):
        plain()


def test_actors_declared_before_the_middleware_was_there_have_it_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE written (word text)")
    with closing(Ledger(database_url)) as ledger:
        # Given a broker to which the middleware comes only after an actor was declared
        broker = PlainStubBroker()
        broker.actor_options.add("store_then_ack")
        backends: list[int] = []

        def charge(word: str) -> None:
            backends.append(switchboard.transaction().info.backend_pid)
            write(word)

        actor = declare(broker, charge)
        broker.add_middleware(StoreThenAck(lambda: ledger))
        with working(broker):
            actor.send("early bird")
            eventually(lambda: written(database_url) == 1, what="it has committed")

        # When it is told of the actor once more, then it does not nest a second transaction in the first.
        broker.emit_after("declare_actor", actor)
        actor("again")
        assert written(database_url) == 2
        broker.close()


@stub
def test_a_coroutine_actor_is_refused_when_it_is_declared(broker: StubBroker) -> None:
    async def charge() -> None:
        pass

    with pytest.raises(ConfigError, match=r"charge.*coroutine"):
        declare(broker, charge)


@both
def test_no_message_is_left_when_all_is_done(broker: StubBroker | RedisBroker, database_url: str) -> None:
    actor = declare(broker, write, actor_name="write")
    with working(broker):
        for number in range(30):
            actor.send(str(number))
        eventually(lambda: written(database_url) == 30, what="all are written")
    if isinstance(broker, RedisBroker):
        with redis.Redis(connection_pool=broker.client.connection_pool) as client:
            assert not client.keys("*acks*")
            assert client.llen("dramatiq:default") == 0
    else:
        assert broker.queues["default"].unfinished_tasks == 0
