"""Redis pub/sub: at most once, one subscriber among all processes, and honest about what it lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from pydantic import ValidationError
from waiting import eventually
from worker import Worker

from switchboard.config import read_adapters
from switchboard.embedded import ValkeyServer
from switchboard.errors import BrokerUnavailable, ConfigError, PublishRejected
from switchboard.model import Delivery
from switchboard.pull import Outgoing, RedisPubSub

SOON = timedelta(milliseconds=300)
MEGABYTE = 1024**2

CONFIG = """
[adapters.ticks]
type = "redis-pubsub"
url = "${TICKS_URL}"
channel = "ticks"
queue = "ticks"
loss_tolerant = true
"""


def adapter_for(url: str, **options: Any) -> RedisPubSub:
    return RedisPubSub("ticks", **{"url": url, "channel": "ticks", "queue": "q", "loss_tolerant": True, **options})


@pytest.fixture
def adapter(redis_url: str) -> Iterator[RedisPubSub]:
    with closing(adapter_for(redis_url)) as adapter:
        yield adapter


def receive(adapter: RedisPubSub, limit: int = 500, within: timedelta = SOON) -> list[Delivery]:
    return adapter.receive(limit, 16 * MEGABYTE, within)


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def subscribers(client: "redis.Redis") -> int:
    [(_, count)] = client.pubsub_numsub("ticks")
    return int(count)


def kill_subscribers(client: "redis.Redis") -> None:
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]


# Loss has to be tolerated, in so many words


@pytest.mark.parametrize("said", ["", "loss_tolerant = false\n"])
def test_it_is_refused_unless_somebody_wrote_that_loss_is_tolerated_and_the_refusal_says_why(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("TICKS_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError) as caught:
        read_adapters(CONFIG.replace("loss_tolerant = true\n", said))
    refusal = str(caught.value)
    assert "adapters.ticks.loss_tolerant" in refusal
    assert "loses messages" in refusal
    assert "redis-stream or redis-list" in refusal
    assert len(read_adapters(CONFIG)) == 1


@pytest.mark.parametrize("said", ["yes", 1, None])
def test_nothing_but_true_says_it(said: object) -> None:
    with pytest.raises(ValidationError, match="loss_tolerant"):
        adapter_for("redis://127.0.0.1:1/0", loss_tolerant=said)


def test_a_worker_with_a_channel_that_is_not_said_to_be_loss_tolerant_does_not_start(
    tmp_path: Path, database_url: str, redis_url: str
) -> None:
    worker = worker_for(tmp_path, database_url, redis_url)
    (tmp_path / "switchboard.toml").write_text(CONFIG.replace("loss_tolerant = true\n", ""))
    with worker:
        eventually(lambda: worker.parent.poll() is not None, within=30, what="it has ended")
        assert worker.parent.returncode != 0
        assert "loss_tolerant = true" in worker.output
        assert "Traceback" not in worker.output


# Reading


def test_what_is_published_while_it_listens_is_read_to_the_byte_and_in_order(
    adapter: RedisPubSub, redis_client: "redis.Redis"
) -> None:
    assert receive(adapter) == []
    sent = [b"first", bytes(range(256)), b"", b"\xff\x00", b"x" * MEGABYTE]
    for body in sent:
        assert redis_client.publish("ticks", body) == 1
    found: list[Delivery] = []
    while got := receive(adapter):
        found += got
    assert bodies(found) == sent
    assert {(each.native_id, each.verify_detail, each.tries) for each in found} == {(None, "redis acl: default", 1)}


def test_a_batch_keeps_to_its_bounds(adapter: RedisPubSub, redis_client: "redis.Redis") -> None:
    receive(adapter)
    for number in range(10):
        redis_client.publish("ticks", f"{number}" * 1000)
    assert len(receive(adapter, 4)) == 4
    assert len(adapter.receive(500, 2500, SOON)) == 3
    assert len(receive(adapter)) == 3


def test_what_was_published_before_it_listened_is_lost(adapter: RedisPubSub, redis_client: "redis.Redis") -> None:
    assert redis_client.publish("ticks", "before") == 0
    receive(adapter)
    redis_client.publish("ticks", "after")
    assert bodies(receive(adapter)) == [b"after"]


def test_a_lost_connection_is_broker_unavailable_and_the_gap_is_told_once(
    adapter: RedisPubSub, redis_client: "redis.Redis"
) -> None:
    receive(adapter)
    adapter.gaps()
    kill_subscribers(redis_client)
    with pytest.raises(BrokerUnavailable):
        receive(adapter)
    redis_client.publish("ticks", "lost")
    began = time.monotonic()
    assert receive(adapter) == []
    redis_client.publish("ticks", "heard")
    assert bodies(receive(adapter)) == [b"heard"]
    (gap,) = adapter.gaps()
    assert gap.seconds is not None
    assert 0 <= gap.seconds <= time.monotonic() - began + 1
    assert adapter.gaps() == []


def test_what_had_arrived_before_the_connection_was_lost_is_not_lost_with_it(
    adapter: RedisPubSub, redis_client: "redis.Redis"
) -> None:
    receive(adapter)
    for number in range(10):
        assert redis_client.publish("ticks", f"{number}") == 1
    kill_subscribers(redis_client)
    found: list[Delivery] = []

    def read() -> bool:
        with suppress(BrokerUnavailable):
            found.extend(receive(adapter))
        return subscribers(redis_client) == 1

    eventually(read, what="it listens again")
    assert bodies(found) == [f"{number}".encode() for number in range(10)]


def test_a_server_that_is_away_is_broker_unavailable_and_after_its_return_it_listens(own_valkey: ValkeyServer) -> None:
    with closing(adapter_for(own_valkey.url)) as adapter:
        receive(adapter)
        adapter.gaps()
        own_valkey.kill()
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                receive(adapter)
        with pytest.raises(BrokerUnavailable):
            adapter.send([Outgoing(b"a")])
        own_valkey.start()
        assert receive(adapter) == []
        assert len(adapter.gaps()) == 1
        assert adapter.send([Outgoing(b"a")]) == ["1 receivers"]
        assert bodies(receive(adapter)) == [b"a"]


def test_it_publishes_bodies_alone(adapter: RedisPubSub) -> None:
    assert adapter.send([Outgoing(b"nobody hears it")]) == ["0 receivers"]
    for refused in (Outgoing(b"a", {"content-type": "x/y"}), Outgoing(b"a", idempotency_key="k")):
        with pytest.raises(PublishRejected):
            adapter.send([refused])


def test_close_leaves_no_connection(redis_url: str, nothing_left_behind: None) -> None:
    adapter = adapter_for(redis_url)
    receive(adapter)
    adapter.close()
    receive(adapter)
    adapter.close()


# In workers


def worker_for(folder: Path, database_url: str, redis_url: str) -> Worker:
    (folder / "switchboard.toml").write_text(CONFIG)
    env = {
        "DATABASE_URL": database_url,
        "SWITCHBOARD_BROKER_URL": redis_url,
        "TICKS_URL": redis_url,
        "SWITCHBOARD_CONFIG": "",
    }
    return Worker(cwd=folder, env=env)


@dataclass
class Line:
    folder: Path
    database_url: str
    redis_url: str
    client: "redis.Redis"

    def worker(self) -> Worker:
        return worker_for(self.folder, self.database_url, self.redis_url)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def stored(self) -> list[bytes]:
        """The bodies of all todos."""
        query = "SELECT e.payload FROM todos t JOIN events e ON e.id = t.event_id ORDER BY e.id"
        return [payload for (payload,) in self.rows(query)]

    def gaps(self) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT id, convert_from(payload, 'UTF8')::jsonb FROM events WHERE event_type = 'switchboard.gap'"
        )

    def listened_to(self, within: float = 20) -> None:
        eventually(lambda: subscribers(self.client) == 1, within=within, what="somebody listens")

    def publish(self, body: str) -> int:
        receivers = self.client.publish("ticks", body)
        assert isinstance(receivers, int)
        return receivers


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis") -> Line:
    return Line(tmp_path, database_url, redis_url, redis_client)


def remains(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), what
        time.sleep(0.05)


def test_of_two_workers_one_listens_and_the_other_takes_over_when_it_is_killed(line: Line) -> None:
    with line.worker() as first:
        first.wait_ready()
        line.listened_to()
        with line.worker() as second:
            second.wait_ready()
            # Longer than the standing by of a second: each message is heard once.
            remains(lambda: subscribers(line.client) == 1, seconds=4, what="two listen at once")
            assert line.publish("one") == 1
            eventually(lambda: line.stored() == [b"one"], what="it is stored")

            known = len(line.gaps())
            first.kill_all()
            # Between the two nobody listened.
            eventually(lambda: len(line.gaps()) == known + 1, what="the second one has noted its gap")
            eventually(lambda: subscribers(line.client) == 1, what="it alone listens")
            assert line.publish("two") == 1
            eventually(lambda: line.stored() == [b"one", b"two"], what="the second one stores")
            assert len(line.gaps()) == known + 1
            assert second.terminate() == 0
    assert subscribers(line.client) == 0


def test_when_the_active_one_is_stopped_in_good_order_the_other_listens_within_seconds(line: Line) -> None:
    with line.worker() as first:
        first.wait_ready()
        line.listened_to()
        with line.worker() as second:
            second.wait_ready()
            assert first.terminate() == 0
            line.listened_to(within=5)
            assert line.publish("heard") == 1
            eventually(lambda: line.stored() == [b"heard"], what="it is stored")


def test_who_loses_its_lock_stops_listening_and_there_is_one_again(line: Line) -> None:
    with line.worker() as first, line.worker() as second:
        first.wait_ready()
        second.wait_ready()
        line.listened_to()
        here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        holders = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = {here}"
        [holder] = line.rows(holders)
        line.rows(f"SELECT pg_terminate_backend({holder[0]})")
        eventually(lambda: line.rows(holders) not in ([], [holder]), what="it is held again")

        def one_alone() -> bool:
            """For longer than the one that has lost it takes to notice."""
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                if subscribers(line.client) != 1:
                    return False
                time.sleep(0.05)
            return True

        eventually(one_alone, what="one listens")
        remains(lambda: subscribers(line.client) == 1, seconds=3, what="two listen, or none")
        assert line.publish("one") == 1
        eventually(lambda: line.stored() == [b"one"], what="it is stored")


def test_a_gap_is_recorded_as_an_event_without_a_todo_and_what_comes_after_it_is_stored(line: Line) -> None:
    with line.worker() as worker:
        worker.wait_ready()
        line.listened_to()
        line.publish("before")
        eventually(lambda: line.stored() == [b"before"], what="it is stored")
        before = [gap_id for gap_id, _ in line.gaps()]

        kill_subscribers(line.client)
        eventually(lambda: len(line.gaps()) > len(before), what="the gap is recorded")
        line.listened_to()
        line.publish("after")
        eventually(lambda: line.stored() == [b"before", b"after"], what="what came after is stored")
        [(gap_id, payload)] = [gap for gap in line.gaps() if gap[0] not in before]
        assert payload["seconds"] >= 0
        [about] = line.rows(
            f"SELECT source, family, trust_mode, verified, verify_detail, external_id FROM events WHERE id = {gap_id}"
        )
        assert about == ("ticks", "queue", "queue", False, "redis acl: default", None)
        assert line.rows(f"SELECT id FROM todos WHERE event_id = {gap_id}") == []
        assert len(line.rows("SELECT id FROM todos")) == 2
        assert "lost" in worker.output

        kill_subscribers(line.client)
        eventually(lambda: len(line.gaps()) == len(before) + 2, what="each gap is recorded")


def test_an_adapter_that_is_disabled_stops_listening_and_what_is_sent_meanwhile_is_not_stored_later(
    line: Line,
) -> None:
    with line.worker() as worker:
        worker.wait_ready()
        line.listened_to()
        line.publish("before")
        eventually(lambda: line.stored() == [b"before"], what="it is stored")

        line.rows("UPDATE adapters SET enabled = false, updated_at = now()")
        disabled = "SELECT clock_timestamp() - updated_at > '2s' FROM adapters"
        eventually(lambda: line.rows(disabled) == [(True,)], what="two seconds have passed")
        line.publish("meanwhile")
        remains(lambda: line.stored() == [b"before"], seconds=2, what="a disabled adapter stores")
        listening = subscribers(line.client)
        known = len(line.gaps())

        line.rows("UPDATE adapters SET enabled = true")
        line.listened_to()

        def heard_again() -> bool:
            line.publish("after")
            return b"after" in line.stored()

        eventually(heard_again, within=10, every=0.3, what="it stores again")
        assert b"meanwhile" not in line.stored(), "a disabled adapter went on consuming"
        assert listening == 0, "a disabled adapter went on listening"
        assert len(line.gaps()) == known + 1, "nobody listened meanwhile"


def test_equal_messages_are_one_todo_until_it_has_ended(line: Line) -> None:
    with line.worker() as worker:
        worker.wait_ready()
        line.listened_to()
        for _ in range(3):
            line.publish("same")
        line.publish("last")
        eventually(lambda: sorted(line.stored()) == [b"last", b"same"], what="both are stored")
