"""The Redis list adapter on a real Valkey: what it moves, holds, gives back and removes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from proxy import Proxy
from pydantic import ValidationError
from redis.crc import key_slot
from servers import unavailable
from waiting import eventually
from worker import Worker

from switchboard.embedded import EmbeddedUnavailable, ValkeyServer
from switchboard.errors import AckFailed, BrokerUnavailable, PublishRejected
from switchboard.model import Delivery
from switchboard.pull import Outgoing, RedisList

SOON = timedelta(milliseconds=200)
MEGABYTE = 1024**2

#: Another process: does as it is told, line by line, and says what it got. "die" ends it as a kill does.
READER = """
import json, os, sys
from base64 import b64encode
from datetime import timedelta
from switchboard.pull import RedisList
url, options = sys.argv[1], json.loads(sys.argv[2])
adapter = RedisList("jobs", url=url, queue="q", **({"list": "jobs"} | options))
got = []
for line in sys.stdin:
    order, *arguments = line.split()
    if order == "die":
        os._exit(1)
    new = []
    if order == "receive":
        new = adapter.receive(int(arguments[0]), 10**9, timedelta(seconds=float(arguments[1])))
    elif order == "left_behind":
        new = adapter.left_behind(500, 10**9)
    elif order == "count_tries":
        adapter.count_tries(got, int(arguments[0]))
    elif order == "keep":
        adapter.keep(got)
    elif order == "give_back":
        adapter.give_back(got)
        got = []
    elif order == "drain":
        while batch := adapter.receive(50, 10**9, timedelta(seconds=0.5)):
            adapter.acknowledge(batch)
            new += batch
    got += new
    print(json.dumps([[b64encode(each.body).decode(), each.tries] for each in new]), flush=True)
"""


class Reader:
    """A real process with an adapter of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def send(self, *order: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, order)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[tuple[str, int]]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the reader has ended"
        return [(body, tries) for body, tries in json.loads(line)]

    def __call__(self, *order: object) -> list[tuple[str, int]]:
        self.send(*order)
        return self.answer()

    def receive(self, many: int, within: float = 5) -> None:
        assert len(self("receive", many, within)) == many

    def die(self) -> None:
        self.send("die")
        assert self._process.wait(10) == 1

    @property
    def pid(self) -> int:
        return self._process.pid


@contextmanager
def reader(url: str, **options: object) -> Iterator[Reader]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, url, json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reader(process)
    finally:
        process.kill()
        process.communicate()


def adapter_for(url: str, **options: Any) -> RedisList:
    return RedisList("jobs", **{"url": url, "list": "jobs", "queue": "q", **options})


@pytest.fixture
def adapter(redis_url: str) -> Iterator[RedisList]:
    with closing(adapter_for(redis_url)) as adapter:
        yield adapter


def receive(adapter: RedisList, limit: int = 500, within: timedelta = SOON) -> list[Delivery]:
    return adapter.receive(limit, 16 * MEGABYTE, within)


def left_behind(adapter: RedisList, limit: int = 500) -> list[Delivery]:
    return adapter.left_behind(limit, 16 * MEGABYTE)


def push(client: "redis.Redis", *bodies: bytes) -> None:
    for body in bodies:
        client.lpush("jobs", body)


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def raw(reply: object) -> list[bytes]:
    assert isinstance(reply, list)
    return reply


def waiting(client: "redis.Redis", name: str = "jobs") -> list[bytes]:
    """What is on the source, oldest first."""
    return raw(client.lrange(name, 0, -1))[::-1]


def unacknowledged(client: "redis.Redis") -> list[bytes]:
    """What is on anybody's processing list."""
    keys = raw(client.keys("*:processing:*"))
    return sorted(body for key in keys for body in raw(client.lrange(key.decode(), 0, -1)))


def numbered(count: int) -> list[bytes]:
    return [f"message {number:05}".encode() for number in range(count)]


# Reading


def test_it_reads_from_the_right_the_oldest_first_and_moves_what_it_reads_to_a_processing_list(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    push(redis_client, b"first", b"second", b"third")
    got = receive(adapter)
    assert bodies(got) == [b"first", b"second", b"third"]
    assert waiting(redis_client) == []
    assert unacknowledged(redis_client) == [b"first", b"second", b"third"], "nothing is removed by reading"
    assert {each.verify_detail for each in got} == {"redis acl: default"}
    assert {(each.native_id, each.tries) for each in got} == {(None, 1)}


def test_one_read_fills_a_batch_and_takes_no_more_than_it_is_asked_for(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    sent = numbered(70)
    push(redis_client, *sent)
    assert bodies(receive(adapter, 50)) == sent[:50]
    assert waiting(redis_client) == sent[50:]
    assert bodies(receive(adapter, 50)) == sent[50:]


def test_a_full_list_is_read_in_full_batches_after_a_few_reads(adapter: RedisList, redis_client: "redis.Redis") -> None:
    sent = numbered(3000)
    redis_client.lpush("jobs", *sent)
    reads = []
    while got := receive(adapter):
        reads.append(bodies(got))
    assert [body for read in reads for body in read] == sent
    assert max(map(len, reads)) == 500
    assert len(reads) <= 10, list(map(len, reads))


def test_a_batch_is_filled_in_a_few_round_trips_however_large_it_is(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    redis_client.lpush("jobs", *numbered(5000))
    while len(receive(adapter)) < 500:
        pass
    redis_client.config_resetstat()
    assert len(receive(adapter)) == 500
    (read,) = (int(line.split(":")[1]) for line in reads_of(redis_client) if line.startswith("total_reads_processed"))
    assert read < 40, "500 messages took a round trip each"


def reads_of(client: "redis.Redis") -> list[str]:
    return [f"{name}:{value}" for name, value in client.info("stats").items()]


def test_the_number_of_messages_a_read_takes_adapts_to_the_bytes_of_a_batch(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    for _ in range(150):
        redis_client.lpush("jobs", "x" * 50_000)
    sizes = []
    while got := adapter.receive(500, MEGABYTE, SOON):
        sizes.append(sum(len(each.body) for each in got))
    assert sum(sizes) == 150 * 50_000
    assert all(size <= MEGABYTE * 1.2 for size in sizes[1:]), sizes


def test_a_message_is_read_as_soon_as_it_comes(adapter: RedisList, redis_client: "redis.Redis") -> None:
    receive(adapter)
    with ThreadPoolExecutor(1) as thread:
        began = time.monotonic()
        reading = thread.submit(receive, adapter, 500, timedelta(seconds=4))
        eventually(lambda: "blmove" in {each["cmd"] for each in redis_client.client_list()}, what="it waits")
        push(redis_client, b"now")
        assert bodies(reading.result(timeout=10)) == [b"now"]
        assert time.monotonic() - began < 3


def test_an_empty_read_comes_back_within_its_timeout(adapter: RedisList) -> None:
    receive(adapter)
    began = time.monotonic()
    assert receive(adapter) == []
    assert time.monotonic() - began < 2


def test_an_empty_read_that_waits_longer_than_the_one_before_is_no_outage(adapter: RedisList) -> None:
    receive(adapter, within=timedelta(milliseconds=20))
    assert receive(adapter, within=timedelta(seconds=6)) == []


@pytest.mark.parametrize("body", [b"", b"\x00", bytes(range(256)), b"\xff\xfe\r\n$5\r\nhello", b"x" * 3 * MEGABYTE])
def test_a_body_comes_to_the_byte_and_is_removed_by_it(
    adapter: RedisList, redis_client: "redis.Redis", body: bytes
) -> None:
    assert adapter.send([Outgoing(body)]) == [sha256(body).hexdigest()]
    got = receive(adapter)
    assert bodies(got) == [body]
    adapter.acknowledge(got)
    assert unacknowledged(redis_client) == []


# Acknowledging


def test_a_message_leaves_only_when_it_is_acknowledged(adapter: RedisList, redis_client: "redis.Redis") -> None:
    push(redis_client, b"a", b"b", b"c")
    got = receive(adapter)
    adapter.keep(got)
    assert unacknowledged(redis_client) == [b"a", b"b", b"c"]
    adapter.acknowledge(got[1:2])
    assert unacknowledged(redis_client) == [b"a", b"c"]
    adapter.acknowledge([got[0], got[2]])
    assert unacknowledged(redis_client) == []
    assert waiting(redis_client) == []


def test_of_equal_bodies_one_acknowledgement_removes_one(adapter: RedisList, redis_client: "redis.Redis") -> None:
    push(redis_client, b"same", b"same", b"same", b"other")
    got = receive(adapter)
    assert bodies(got) == [b"same", b"same", b"same", b"other"]
    adapter.acknowledge(got[:1])
    assert unacknowledged(redis_client) == [b"other", b"same", b"same"]
    adapter.acknowledge(got[1:3])
    assert unacknowledged(redis_client) == [b"other"]


def test_what_is_acknowledged_twice_or_gone_is_no_error(adapter: RedisList, redis_client: "redis.Redis") -> None:
    push(redis_client, b"a")
    got = receive(adapter)
    adapter.acknowledge(got)
    adapter.acknowledge(got)
    redis_client.flushdb()
    adapter.acknowledge(got)


def test_an_acknowledgement_whose_reply_was_lost_and_that_is_made_again_takes_no_equal_message_with_it(
    proxy: Proxy, redis_url: str, redis_client: "redis.Redis"
) -> None:
    with closing(adapter_for(through(proxy, redis_url))) as adapter:
        push(redis_client, b"same")
        stored = receive(adapter)
        push(redis_client, b"same")
        in_flight = receive(adapter)
        assert len(stored) == len(in_flight) == 1
        # Given an acknowledgement that reached the server, and whose reply did not come back
        proxy.reset_in_reply(1)
        with pytest.raises(AckFailed):
            adapter.acknowledge(stored)
        assert unacknowledged(redis_client) == [b"same"]
        # When it is made again, as a consumer does
        adapter.acknowledge(stored)
        # Then what is not stored yet is still there for whoever comes after a crash
        assert unacknowledged(redis_client) == [b"same"]


def test_an_error_about_an_acknowledgement_shows_nothing_of_a_body(redis_url: str, redis_client: "redis.Redis") -> None:
    with acl_user(redis_client, "-lrem") as user, closing(adapter_for(as_user(redis_url, user))) as adapter:
        push(redis_client, b"4111-1111-1111-1111")
        got = receive(adapter)
        with pytest.raises(AckFailed, match=r"lrem|LREM") as caught:
            adapter.acknowledge(got)
    assert "4111" not in str(caught.value)


# What was left behind


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        yield proxy


def through(proxy: Proxy, redis_url: str) -> str:
    return urlsplit(redis_url)._replace(netloc=f"{proxy.url_host}:{proxy.port}").geturl()


@pytest.mark.parametrize("limit", [500, 2])
def test_after_a_lost_reply_what_it_moved_is_had_again_and_what_it_holds_is_not(
    proxy: Proxy, redis_url: str, redis_client: "redis.Redis", limit: int
) -> None:
    with closing(adapter_for(through(proxy, redis_url))) as adapter:
        receive(adapter)
        push(redis_client, b"held", b"same", b"held too")
        held = receive(adapter)
        # An equal body is lost on its way: it is told from the one that is held by their number.
        push(redis_client, b"same")
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(receive, adapter, 500, timedelta(seconds=4))
            assert len(reading.result(10)) == 1, "it is there at once"
        lost = [b"same", b"lost a", b"lost b"]
        proxy.cut()
        lose(adapter, proxy, redis_client, lost)

        found: list[Delivery] = []
        while got := left_behind(adapter, limit):
            found += got
        assert sorted(bodies(found)) == sorted(lost)
        assert {each.tries for each in found} == {1}
        assert len(unacknowledged(redis_client)) == len(held) + 1 + len(lost)
        assert left_behind(adapter) == []


def lose(adapter: RedisList, proxy: Proxy, client: "redis.Redis", lost: list[bytes]) -> None:
    """Each of these is moved, and the reply that says so is cut off."""
    for body in lost:

        def one(body: bytes = body) -> bool:
            with ThreadPoolExecutor(1) as thread:
                reading = thread.submit(receive, adapter, 500, timedelta(seconds=4))
                eventually(lambda: "blmove" in {each["cmd"] for each in client.client_list()}, what="it waits")
                proxy.reset_in_reply(3)
                push(client, body)
                return isinstance(reading.exception(10), BrokerUnavailable)

        # A connection that was cut before is noticed by the first command.
        eventually(one, within=20, what="a reply is lost")
    assert waiting(client) == []


def test_what_a_dead_worker_left_is_taken_over_at_once(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = numbered(100)
    push(redis_client, *sent)
    with reader(redis_url) as other:
        other.receive(50)
        other.receive(50)
        assert waiting(redis_client) == []
        other.die()
        with closing(adapter_for(redis_url, claim_idle="1h")) as adapter:
            assert sorted(bodies(left_behind(adapter, 30))) == sent[:30]
            rest = [*left_behind(adapter), *left_behind(adapter)]
            assert sorted(bodies(rest)) == sent[30:]
            assert unacknowledged(redis_client) == sent
            assert left_behind(adapter) == []
            adapter.acknowledge(rest)
            assert unacknowledged(redis_client) == sent[:30]


def test_what_a_worker_that_was_killed_left_is_taken_over_at_once(redis_url: str, redis_client: "redis.Redis") -> None:
    push(redis_client, b"a")
    with reader(redis_url) as other, closing(adapter_for(redis_url, claim_idle="1h")) as adapter:
        other.receive(1)
        os.kill(other.pid, signal.SIGKILL)
        # Not waited for: it stays a zombie until its parent has collected it.
        eventually(lambda: bodies(left_behind(adapter)) == [b"a"], within=3, what="it is taken over")


def test_what_a_living_worker_holds_is_left_alone(redis_url: str, redis_client: "redis.Redis") -> None:
    push(redis_client, b"a", b"b")
    with reader(redis_url) as other, closing(adapter_for(redis_url)) as adapter:
        other.receive(2)
        assert left_behind(adapter) == []
        assert receive(adapter) == []
        assert unacknowledged(redis_client) == [b"a", b"b"]


def test_a_living_worker_that_is_silent_for_claim_idle_loses_what_it_holds_unless_it_keeps_it(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    push(redis_client, b"a")
    with reader(redis_url) as other, closing(adapter_for(redis_url, claim_idle="600ms")) as adapter:
        other.receive(1)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            other("keep")
            assert left_behind(adapter) == []
        eventually(lambda: bodies(left_behind(adapter)) == [b"a"], within=3, what="it is taken over")


def test_what_a_worker_on_another_host_left_is_taken_over_after_claim_idle(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    push(redis_client, b"a")
    receive(adapter)
    (workers,) = (key.decode() for key in raw(redis_client.keys("*:workers")))
    (mine,) = (name.decode() for name in raw(redis_client.hkeys(workers)))
    (held,) = (key.decode() for key in raw(redis_client.keys("*:processing:*")))
    # Given a worker of the same pid on another host, which has just been seen
    theirs = "elsewhere/" + mine.split("/", 1)[1]
    redis_client.rename(held, held.replace(mine, theirs))
    seconds = float(redis_client.time()[0])
    redis_client.hset(workers, theirs, str(seconds - 50))
    with closing(adapter_for(redis_url_of(redis_client))) as other:
        assert left_behind(other) == [], "claim_idle is 60 seconds"
        redis_client.hset(workers, theirs, str(seconds - 61))
        assert bodies(left_behind(other)) == [b"a"]


def redis_url_of(client: "redis.Redis") -> str:
    about = client.connection_pool.connection_kwargs
    return f"redis://{about['host']}:{about['port']}/{about.get('db') or 0}"


# Giving back


def test_what_is_given_back_is_had_by_another_worker_at_once_and_first(
    adapter: RedisList, redis_url: str, redis_client: "redis.Redis"
) -> None:
    push(redis_client, b"a", b"b", b"c", b"d")
    got = receive(adapter, 3)
    adapter.acknowledge(got[:1])
    adapter.give_back(got[1:])
    assert unacknowledged(redis_client) == []
    assert sorted(waiting(redis_client)) == [b"b", b"c", b"d"]
    assert waiting(redis_client)[-1] == b"d", "what was given back waits in front"
    with closing(adapter_for(redis_url)) as other:
        again = receive(other)
        assert sorted(bodies(again)) == [b"b", b"c", b"d"]
        assert {each.tries for each in again} == {1}, "no try is counted"


def test_of_equal_bodies_as_many_are_given_back_as_are_held(adapter: RedisList, redis_client: "redis.Redis") -> None:
    push(redis_client, b"same", b"same", b"same")
    got = receive(adapter)
    adapter.give_back(got[:2])
    assert (waiting(redis_client), unacknowledged(redis_client)) == ([b"same", b"same"], [b"same"])
    # What is gone is not made anew.
    redis_client.flushdb()
    adapter.give_back(got[2:])
    assert waiting(redis_client) == []


@contextmanager
def acl_user(client: "redis.Redis", *rules: str) -> Iterator[str]:
    user = "jobs-bot"
    client.execute_command("ACL", "SETUSER", user, "reset", "on", ">s3cret", "~*", "&*", "+@all", *rules)  # type: ignore[no-untyped-call]
    try:
        yield user
    finally:
        client.acl_deluser(user)


def as_user(url: str, user: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:s3cret@{parts.netloc.rpartition('@')[2]}").geturl()


def test_a_worker_that_may_not_run_scripts_gives_back_at_once_too(redis_url: str, redis_client: "redis.Redis") -> None:
    with acl_user(redis_client, "-eval") as user:
        push(redis_client, b"a", b"b")
        with reader(as_user(redis_url, user)) as other, closing(adapter_for(redis_url, claim_idle="1h")) as adapter:
            other.receive(2)
            other("give_back")
            found = bodies(left_behind(adapter)) + bodies(receive(adapter))
            if not found:
                other.die()
                assert sorted(bodies(left_behind(adapter))) == [b"a", b"b"], "lost"
                pytest.fail("it was given back only by its process's end")
            assert sorted(found) == [b"a", b"b"]


def test_a_stopped_worker_that_may_not_run_scripts_loses_nothing(redis_url: str, redis_client: "redis.Redis") -> None:
    with acl_user(redis_client, "-eval") as user:
        push(redis_client, b"a", b"b")
        with reader(as_user(redis_url, user)) as other:
            other.receive(2)
            other("give_back")
            other.die()
        with closing(adapter_for(redis_url, claim_idle="1h")) as adapter:
            found = bodies(left_behind(adapter)) + bodies(receive(adapter))
            assert sorted(found) == [b"a", b"b"]


# Tries


def test_the_tries_that_were_counted_are_seen_by_the_next_owner(redis_url: str, redis_client: "redis.Redis") -> None:
    push(redis_client, b"suspect")
    with reader(redis_url) as other:
        other.receive(1)
        other("count_tries", 3)
        other.die()
    push(redis_client, b"innocent")
    with closing(adapter_for(redis_url)) as adapter:
        assert [(each.body, each.tries) for each in receive(adapter)] == [(b"innocent", 1)]
        (suspect,) = left_behind(adapter)
        assert (suspect.body, suspect.tries) == (b"suspect", 3)
        # And by the one after it, where it was given back
        adapter.give_back([suspect])
        with reader(redis_url) as third:
            [(_, tries)] = third("receive", 1, 5)
            assert tries == 3


def test_taking_over_counts_as_no_try(redis_url: str, redis_client: "redis.Redis") -> None:
    push(redis_client, b"a")
    with reader(redis_url) as first:
        first.receive(1)
        first.die()
    for _ in range(3):
        with reader(redis_url) as other:
            assert [tries for _, tries in other("left_behind")] == [1]
            other.die()


def test_the_count_is_forgotten_with_its_message_and_a_count_of_one_is_none(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    push(redis_client, b"a", b"b")
    got = receive(adapter)
    adapter.count_tries(got, 2)
    adapter.count_tries(got[:1], 1)
    adapter.give_back(got)
    again = receive(adapter)
    assert sorted((each.body, each.tries) for each in again) == [(b"a", 1), (b"b", 2)]
    adapter.acknowledge(again)
    assert redis_client.keys("*:tries") == []


def test_the_count_of_a_try_that_ends_well_is_forgotten(adapter: RedisList, redis_client: "redis.Redis") -> None:
    push(redis_client, b"a")
    got = receive(adapter)
    # As ingest does: the source is told of the try before it, and the delivery is as it was read.
    adapter.count_tries(got, got[0].tries + 1)
    adapter.acknowledge(got)
    assert redis_client.keys("*:tries") == []
    push(redis_client, b"a")
    assert [each.tries for each in receive(adapter)] == [1], "an equal message starts with another one's tries"


# One hash slot

NAMES = ["jobs", "{tag}", "a{tag}b", "x{tag}y{other}", "{", "a{b", "käse", "{{tag}}", "a b", ":", "{tag}:switchboard"]


def valkey(folder: Path, **settings: str) -> ValkeyServer:
    """A Valkey with these settings, not started yet."""
    try:
        return ValkeyServer(folder, settings={name.replace("_", "-"): value for name, value in settings.items()})
    except EmbeddedUnavailable as missing:
        unavailable(str(missing))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A cluster of one node, which refuses a command whose keys are not in one slot."""
    with valkey(tmp_path_factory.mktemp("cluster"), cluster_enabled="yes") as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: b"cluster_state:ok" in cluster_info(client), what="the cluster is up")
        yield server


def cluster_info(client: "redis.Redis") -> bytes:
    client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
    reply = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    return reply if isinstance(reply, bytes) else str(reply).encode()


@pytest.mark.parametrize("name", NAMES)
def test_every_key_keeps_to_the_lists_own_hash_slot(cluster: ValkeyServer, name: str) -> None:
    with redis.Redis.from_url(cluster.url) as client, closing(adapter_for(cluster.url, list=name)) as adapter:
        client.flushall()
        assert receive(adapter) == []
        adapter.send([Outgoing(b"a"), Outgoing(b"b"), Outgoing(b"c")])
        got = receive(adapter)
        assert bodies(got) == [b"a", b"b", b"c"]
        adapter.count_tries(got, 2)
        adapter.keep(got)
        adapter.acknowledge(got[:1])
        adapter.give_back(got[1:2])
        assert adapter.lag() is not None
        assert left_behind(adapter) == []
        keys = client.keys("*")
        assert len(keys) == 4, keys
        assert {key_slot(key) for key in keys} == {key_slot(name.encode())}
        with reader(cluster.url, list=name) as other:
            assert len(other("receive", 5, 2)) == 1
            other.die()
        assert bodies(left_behind(adapter)) == [b"b"]


@pytest.mark.parametrize("name", ["a}b", "{}", "}{", "a{}b{c}"])
def test_a_name_whose_slot_no_other_key_can_share_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="hash slot"):
        adapter_for("redis://127.0.0.1:1/0", list=name)


# Lag and publishing


def test_lag_tells_what_waits_and_what_anybody_holds(
    adapter: RedisList, redis_url: str, redis_client: "redis.Redis"
) -> None:
    assert (adapter.lag().unread, adapter.lag().pending) == (0, 0)
    push(redis_client, *numbered(10))
    with reader(redis_url) as other:
        other.receive(2)
        got = receive(adapter, 3)
        assert (adapter.lag().unread, adapter.lag().pending) == (5, 5)
        adapter.acknowledge(got)
        assert (adapter.lag().unread, adapter.lag().pending) == (5, 2)


def test_what_is_published_waits_on_the_left_and_all_or_none_of_it(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    push(redis_client, b"before")
    sent = [b"a", b"b", b"a"]
    ids = adapter.send([Outgoing(body) for body in sent])
    assert waiting(redis_client) == [b"before", *sent]
    assert ids == [sha256(body).hexdigest() for body in sent]
    with pytest.raises(PublishRejected):
        adapter.send([Outgoing(b"c"), Outgoing(b"d", {"content-type": "x/y"})])
    with pytest.raises(PublishRejected):
        adapter.send([Outgoing(b"c"), Outgoing(b"d", idempotency_key="k")])
    assert waiting(redis_client) == [b"before", *sent]


def test_a_list_that_is_something_else_is_refused_for_good_to_the_publisher_and_an_outage_to_the_reader(
    adapter: RedisList, redis_client: "redis.Redis"
) -> None:
    redis_client.set("jobs", "a string")
    with pytest.raises(PublishRejected, match="WRONGTYPE"):
        adapter.send([Outgoing(b"a")])
    with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
        receive(adapter)


def test_a_server_that_is_away_is_broker_unavailable_and_after_its_return_all_is_there(
    own_valkey: ValkeyServer,
) -> None:
    with closing(adapter_for(own_valkey.url)) as adapter:
        adapter.send([Outgoing(b"a"), Outgoing(b"b")])
        got = receive(adapter, 1)
        own_valkey.kill()
        for call in (
            lambda: receive(adapter),
            lambda: left_behind(adapter),
            lambda: adapter.keep(got),
            lambda: adapter.give_back(got),
            lambda: adapter.count_tries(got, 2),
            lambda: adapter.lag(),
            lambda: adapter.send([Outgoing(b"c")]),
        ):
            with pytest.raises(BrokerUnavailable):
                call()
        with pytest.raises(AckFailed):
            adapter.acknowledge(got)
        own_valkey.start()
        assert left_behind(adapter) == [], "it holds that one still"
        adapter.acknowledge(got)
        assert bodies(receive(adapter)) == [b"b"]


def test_close_leaves_no_connection_and_the_next_call_opens_it_again(redis_url: str, nothing_left_behind: None) -> None:
    adapter = adapter_for(redis_url)
    adapter.send([Outgoing(b"a")])
    got = receive(adapter)
    adapter.close()
    adapter.acknowledge(got)
    assert (adapter.lag().unread, adapter.lag().pending) == (0, 0)
    adapter.close()


# Many at once


def test_four_processes_read_each_of_two_thousand_messages_once(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = numbered(2000)
    push(redis_client, *sent[:1000])
    with (
        reader(redis_url) as one,
        reader(redis_url) as two,
        reader(redis_url) as three,
        reader(redis_url) as four,
    ):
        everyone = (one, two, three, four)
        for each in everyone:
            each.send("drain")
        push(redis_client, *sent[1000:])
        read = Counter(body for each in everyone for body, _ in each.answer())
    assert len(read) == 2000
    assert set(read.values()) == {1}
    assert waiting(redis_client) == unacknowledged(redis_client) == []


# In a worker


CONFIG = """
[adapters.jobs]
type = "redis-list"
url = "${JOBS_URL}"
list = "jobs"
queue = "jobs"
provider = "%s"
"""

#: A body that says so ends the process that looks at it.
TEAM = """
import os
from switchboard import Shape
def shape(delivery):
    if b"deadly" in delivery.body:
        os._exit(9)
    return Shape.of({"text": delivery.body.decode()}, title="job")
"""


def worker_for(folder: Path, database_url: str, redis_url: str, *, processes: int, provider: str = "generic") -> Worker:
    (folder / "switchboard.toml").write_text(CONFIG % provider)
    (folder / "team.py").write_text(TEAM)
    env = {
        "DATABASE_URL": database_url,
        "SWITCHBOARD_BROKER_URL": redis_url,
        "JOBS_URL": redis_url,
        "SWITCHBOARD_CONFIG": "",
        "PYTHONPATH": str(folder),
    }
    return Worker(cwd=folder, env=env, processes=processes)


def column(database_url: str, query: str) -> list[Any]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        return [value for (value,) in connection.execute(query.encode()).fetchall()]


def test_two_thousand_messages_through_four_worker_processes_are_stored_once_each(
    tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis"
) -> None:
    sent = numbered(2000)
    push(redis_client, *sent[:1000])
    with worker_for(tmp_path, database_url, redis_url, processes=4) as worker:
        worker.wait_ready()
        push(redis_client, *sent[1000:])
        eventually(
            lambda: not waiting(redis_client) and not unacknowledged(redis_client), within=60, what="all is read"
        )
        stored = column(database_url, "SELECT payload FROM events")
        assert sorted(stored) == sent
        keys = column(database_url, "SELECT idempotency_key FROM todos")
        assert sorted(keys) == sorted(f"redis:jobs:{sha256(body).hexdigest()}" for body in sent)
        assert worker.terminate() == 0
    assert column(database_url, "SELECT detail FROM dead_letters") == []


def test_an_equal_message_is_a_todo_again_when_the_first_one_has_ended(
    tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis"
) -> None:
    with worker_for(tmp_path, database_url, redis_url, processes=1) as worker:
        worker.wait_ready()
        push(redis_client, b"same", b"same")
        settled(redis_client)
        assert len(column(database_url, "SELECT id FROM todos")) == 1
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("UPDATE todos SET state = 'done'")
        push(redis_client, b"same")
        settled(redis_client)
        assert len(column(database_url, "SELECT id FROM todos")) == 2


def settled(client: "redis.Redis", within: float = 20) -> None:
    def done() -> bool:
        return not waiting(client) and not unacknowledged(client)

    eventually(done, within=within, what="all is stored and acknowledged")


@pytest.mark.timeout(240)
def test_what_kills_its_worker_every_time_ends_as_a_dead_letter_and_its_neighbours_are_stored(
    tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis"
) -> None:
    good = numbered(20)
    push(redis_client, *good[:10], b"deadly", *good[10:])
    deaths = 0
    with worker_for(tmp_path, database_url, redis_url, processes=1, provider="team:shape") as worker:
        worker.wait_ready()

        def ended() -> bool:
            nonlocal deaths
            if worker.parent.poll() is not None:
                deaths += 1
                assert deaths <= 2 + 3, "more deaths than one such message may cost"
                worker.start()
            # Counted in the ledger: a message that is being taken over is, for a moment, on no list that was looked at.
            kept = "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM dead_letters)"
            return column(database_url, kept) == [21] and not unacknowledged(redis_client)

        eventually(ended, within=180, what="all is stored or a dead letter")
        assert sorted(column(database_url, "SELECT payload FROM events")) == good
        with psycopg.connect(database_url) as connection:
            letters = connection.execute("SELECT payload, reason, deliveries FROM dead_letters").fetchall()
        assert letters == [(b"deadly", "poison", 5)]
        assert deaths == 5
        assert worker.terminate() == 0
    assert redis_client.keys("*:tries") == [], "counts outlive their messages"
