"""The Redis stream adapter on a real Valkey: what it reads, keeps, gives back and acknowledges."""

import json
import logging
import os
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from proxy import Proxy
from waiting import eventually

from switchboard.embedded import ValkeyServer
from switchboard.errors import AckFailed, BrokerUnavailable, PublishRejected
from switchboard.model import Delivery
from switchboard.pull import Outgoing, RedisStream

SOON = timedelta(milliseconds=200)
MEGABYTE = 1024**2

#: Another process: reads some entries and dies at once, or stays with them until its standard input ends.
READER = """
import os, sys
from datetime import timedelta
from hashlib import sha256
from switchboard.pull import RedisStream
url, how, many = sys.argv[1:]
adapter = RedisStream("deploys", url=url, stream="deploys", queue="q")
got = adapter.left_behind(int(many), 10**9) or adapter.receive(int(many), 10**9, timedelta(seconds=5))
print(len(got), flush=True)
if how == "stay":
    sys.stdin.read()
os._exit(1)
"""


def adapter_for(url: str, **options: Any) -> RedisStream:
    return RedisStream("deploys", **{"url": url, "stream": "deploys", "queue": "q", **options})


@pytest.fixture
def adapter(redis_url: str) -> Iterator[RedisStream]:
    with closing(adapter_for(redis_url)) as adapter:
        yield adapter


def receive(adapter: RedisStream, limit: int = 500, within: timedelta = SOON) -> list[Delivery]:
    return adapter.receive(limit, 16 * MEGABYTE, within)


def take_over(adapter: RedisStream, limit: int = 500) -> list[Delivery]:
    """All that was left behind, step by step."""
    found: list[Delivery] = []
    while got := adapter.left_behind(limit, 16 * MEGABYTE):
        assert len(got) <= limit
        found += got
    return found


def publish(adapter: RedisStream, body: bytes, headers: dict[str, str] | None = None) -> str:
    (entry_id,) = adapter.send([Outgoing(body, headers or {})])
    return entry_id


def drain(adapter: RedisStream) -> list[Delivery]:
    """Everything that is to be had now: what was left behind, then what is new, read by read."""
    found = take_over(adapter)
    while got := receive(adapter):
        found += got
    return found


def add(client: "redis.Redis", *bodies: str) -> list[str]:
    return [as_text(client.xadd("deploys", {"body": body})) for body in bodies]


def as_text(reply: object) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


def ids(deliveries: Sequence[Delivery]) -> list[str | None]:
    return [delivery.native_id for delivery in deliveries]


def pending(client: "redis.Redis") -> int:
    return int(client.xpending("deploys", "switchboard")["pending"])


def pending_rows(client: "redis.Redis") -> list[dict[str, Any]]:
    return list(client.xpending_range("deploys", "switchboard", "-", "+", 1000))


@contextmanager
def reader(url: str, how: str, many: int) -> Iterator["subprocess.Popen[str]"]:
    """A real process that has read so many entries."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, url, how, str(many)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == f"{many}\n"
        if how == "die":
            assert process.wait(10) == 1
        yield process
    finally:
        process.kill()
        process.communicate()


# Reading


def test_the_group_and_the_stream_are_made_where_they_are_missing(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    assert receive(adapter) == []
    assert redis_client.exists("deploys") == 1
    assert [group["name"] for group in redis_client.xinfo_groups("deploys")] == [b"switchboard"]


def test_what_was_there_before_the_group_is_read_from_the_first_entry(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    sent = add(redis_client, "a", "b", "c")
    got = receive(adapter)
    assert pending(redis_client) == 3, "nothing is acknowledged by reading"
    assert ids(got) == sent
    assert [json.loads(each.body) for each in got] == [{"body": "a"}, {"body": "b"}, {"body": "c"}]
    assert {each.verify_detail for each in got} == {"redis acl: default"}


def test_each_entry_is_read_once_and_a_new_one_as_soon_as_it_comes(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    add(redis_client, "a")
    assert len(receive(adapter)) == 1
    with ThreadPoolExecutor(1) as thread:
        began = time.monotonic()
        waiting = thread.submit(receive, adapter, 500, timedelta(seconds=20))
        eventually(lambda: "xreadgroup" in {each["cmd"] for each in redis_client.client_list()}, what="it waits")
        sent = add(redis_client, "b")
        assert ids(waiting.result(timeout=10)) == sent
        assert time.monotonic() - began < 10


def test_an_empty_read_comes_back_within_its_timeout(adapter: RedisStream) -> None:
    receive(adapter)
    began = time.monotonic()
    assert receive(adapter) == []
    assert time.monotonic() - began < 2


def test_it_reads_no_more_than_it_is_asked_for(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *"abcdefg")
    assert ids(receive(adapter, 3)) == sent[:3]
    assert pending(redis_client) == 3
    assert ids(receive(adapter, 3)) == sent[3:6]


def test_the_number_of_entries_a_read_adapts_to_the_bytes_of_a_batch(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    for _ in range(150):
        redis_client.xadd("deploys", {"body": "x" * 50_000})
    reads = []
    while got := adapter.receive(500, MEGABYTE, SOON):
        reads.append(sum(len(each.body) for each in got))
    assert sum(reads) > 150 * 50_000
    assert all(size <= MEGABYTE * 1.2 for size in reads), reads

    # Small ones again: the reads grow again, and all is read.
    for _ in range(3000):
        redis_client.xadd("deploys", {"body": "y"})
    counts = []
    while got := adapter.receive(500, MEGABYTE, SOON):
        counts.append(len(got))
    assert sum(counts) == 3000
    assert max(counts) == 500


def test_one_entry_larger_than_a_batch_is_read_by_itself(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    for letter in "abc":
        redis_client.xadd("deploys", {"body": letter * 2 * MEGABYTE})
    first = adapter.receive(500, MEGABYTE, SOON)
    second = adapter.receive(500, MEGABYTE, SOON)
    third = adapter.receive(500, MEGABYTE, SOON)
    assert [len(each) for each in (first, second, third)] == [1, 1, 1]


# Bodies


def test_an_entrys_fields_are_the_body_as_they_were_sent(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    def send(*fields: bytes | str) -> None:
        redis_client.execute_command("XADD", "deploys", "*", *fields)  # type: ignore[no-untyped-call]

    send("z", "1", "a", "käse")
    send("a", "1", "a", "2")
    send("a", b"\xff\x00", b"\xfe", "b")
    send("", "")
    bodies = [json.loads(each.body) for each in receive(adapter)]
    assert bodies == [
        {"z": "1", "a": "käse"},
        [["a", "1"], ["a", "2"]],
        [["a", {"base64": "/wA="}], [{"base64": "/g=="}, "b"]],
        {"": ""},
    ]


def test_the_body_field_is_the_body_and_the_others_are_its_headers(redis_url: str, redis_client: "redis.Redis") -> None:
    redis_client.xadd("deploys", {"data": b"\x00\xff{", "content-type": "x/y", "bad": b"\xff\x00"})
    with closing(adapter_for(redis_url, body="data")) as adapter:
        (got,) = receive(adapter)
    assert got.body == b"\x00\xff{"
    assert got.headers == {"content-type": "x/y", "bad": "\ufffd\ufffd"}
    assert got.content_type == "x/y"
    assert got.invalid is None


def test_an_entry_without_its_body_field_or_with_two_is_invalid_and_keeps_all_its_fields(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    redis_client.xadd("deploys", {"other": "1"})
    redis_client.execute_command("XADD", "deploys", "*", "data", "1", "data", "2")  # type: ignore[no-untyped-call]
    redis_client.xadd("deploys", {"data": "fine"})
    with closing(adapter_for(redis_url, body="data")) as adapter:
        missing, twice, fine = receive(adapter)
    assert missing.invalid
    assert "no field" in missing.invalid
    assert "'data'" in missing.invalid
    assert json.loads(missing.body) == {"other": "1"}
    assert twice.invalid
    assert json.loads(twice.body) == [["data", "1"], ["data", "2"]]
    assert (fine.body, fine.invalid) == (b"fine", None)


def test_what_is_published_with_a_body_field_is_received_to_the_byte(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    body = bytes(range(256))
    with closing(adapter_for(redis_url, body="data")) as adapter:
        entry_id = publish(adapter, body, {"content-type": "x/y", "käse": "1"})
        (got,) = receive(adapter)
    assert redis_client.xlen("deploys") == 1
    assert (got.native_id, got.body, got.content_type) == (entry_id, body, "x/y")
    assert got.headers["käse"] == "1"


def test_what_is_published_without_one_becomes_the_entrys_fields(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    entry_id = publish(adapter, b'{"ref": "main", "n": 1.50}')
    # Numbers keep their value.
    assert redis_client.xrange("deploys") == [(entry_id.encode(), {b"ref": b"main", b"n": b"1.50"})]


@pytest.mark.parametrize("body", [b"text", b"[1]", b"{}", b"\xff", b"", b"[" * 100_000])
def test_what_cannot_be_an_entry_is_refused_for_good(
    adapter: RedisStream, redis_client: "redis.Redis", body: bytes
) -> None:
    with pytest.raises(PublishRejected):
        publish(adapter, body)
    assert redis_client.exists("deploys") == 0


def test_a_stream_that_is_something_else_refuses_what_is_published(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    redis_client.set("deploys", "a string")
    with pytest.raises(PublishRejected, match="WRONGTYPE"):
        publish(adapter, b'{"a": "1"}')
    with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
        receive(adapter)


# Acknowledging


def test_a_batch_is_acknowledged_in_one_call(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    add(redis_client, *"abcdefghij")
    got = receive(adapter)
    assert len(got) == 10
    assert pending(redis_client) == 10
    redis_client.config_resetstat()
    adapter.acknowledge(got)
    assert pending(redis_client) == 0
    assert redis_client.info("commandstats")["cmdstat_xack"]["calls"] == 1


def test_settling_what_is_acknowledged_or_gone_is_no_error(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    got = receive(adapter)
    adapter.acknowledge(got)
    adapter.acknowledge(got)
    redis_client.flushdb()
    adapter.acknowledge(got)
    adapter.keep(got)
    adapter.give_back(got)


def test_only_what_is_acknowledged_is(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *"abc")
    got = receive(adapter)
    adapter.acknowledge([got[1]])
    assert [row["message_id"].decode() for row in pending_rows(redis_client)] == [sent[0], sent[2]]


def test_lag_tells_what_waits(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    add(redis_client, *"abcde")
    got = receive(adapter, 2)
    lag = adapter.lag()
    assert (lag.unread, lag.pending) == (3, 2)
    adapter.acknowledge(got)
    assert (adapter.lag().unread, adapter.lag().pending) == (3, 0)


def test_lag_of_a_stream_that_is_not_there_yet_is_no_error(adapter: RedisStream) -> None:
    assert adapter.lag().pending == 0


# A group that vanishes


@pytest.mark.parametrize("how", ["destroyed", "flushed", "deleted"])
def test_a_lost_group_is_made_again_and_nothing_in_the_stream_is_missed(
    adapter: RedisStream, redis_client: "redis.Redis", how: str
) -> None:
    add(redis_client, "before")
    adapter.acknowledge(receive(adapter))
    if how == "destroyed":
        redis_client.xgroup_destroy("deploys", "switchboard")
    elif how == "flushed":
        redis_client.flushdb()
    else:
        redis_client.delete("deploys")
    sent = add(redis_client, "after")

    found: list[Delivery] = []

    def read() -> bool:
        with suppress(BrokerUnavailable):
            found.extend(receive(adapter))
        return sent[0] in ids(found)

    eventually(read, what="what was added after is read")
    assert [group["name"] for group in redis_client.xinfo_groups("deploys")] == [b"switchboard"]


@pytest.mark.parametrize("how", ["XGROUP DESTROY deploys switchboard", "FLUSHDB", "DEL deploys"])
def test_a_group_that_is_lost_while_it_waits_is_made_again(
    adapter: RedisStream, redis_client: "redis.Redis", how: str
) -> None:
    receive(adapter)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(receive, adapter, 500, timedelta(seconds=5))
        eventually(lambda: "xreadgroup" in {each["cmd"] for each in redis_client.client_list()}, what="it waits")
        redis_client.execute_command(*how.split())  # type: ignore[no-untyped-call]
        assert not isinstance(waiting.exception(timeout=15), redis.RedisError)
    sent = add(redis_client, "after")

    def read() -> bool:
        with suppress(BrokerUnavailable):
            return ids(receive(adapter)) == sent
        return False

    eventually(read, what="what was added after is read")


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
def test_after_a_lost_reply_its_own_pending_entries_are_left_behind(
    proxy: Proxy, redis_url: str, redis_client: "redis.Redis", limit: int
) -> None:
    with closing(adapter_for(through(proxy, redis_url))) as adapter:
        receive(adapter)
        sent = add(redis_client, *"abcde")
        # Given a read whose reply was cut off on its way: pending with this process, and held by nobody
        proxy.reset_in_reply(20)
        with pytest.raises(BrokerUnavailable):
            receive(adapter)
        assert pending(redis_client) == 5
        sent += add(redis_client, "f")

        found = take_over(adapter, limit)
        assert ids(found) == sent[:5]
        assert {each.tries for each in found} == {1}
        assert take_over(adapter) == [], "what it holds now is nobody's to take over"
        assert ids(receive(adapter)) == sent[5:]
        assert {row["times_delivered"] for row in pending_rows(redis_client)} == {1}


def test_what_it_holds_is_not_read_again_after_a_lost_connection(
    proxy: Proxy, redis_url: str, redis_client: "redis.Redis"
) -> None:
    with closing(adapter_for(through(proxy, redis_url))) as adapter:
        sent = add(redis_client, *"ab")
        held = receive(adapter)
        add(redis_client, "lost on its way")
        proxy.reset_in_reply(20)
        with pytest.raises(BrokerUnavailable):
            receive(adapter)
        assert [json.loads(each.body)["body"] for each in drain(adapter)] == ["lost on its way"]
        assert ids(held) == sent


def test_connections_that_the_server_closed_are_opened_again(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    held = receive(adapter)
    redis_client.client_kill_filter(_type="normal", skipme=True)
    adapter.acknowledge(held)
    assert pending(redis_client) == 0
    sent = add(redis_client, "b")

    def read() -> bool:
        with suppress(BrokerUnavailable):
            return ids(receive(adapter)) == sent
        return False

    eventually(read, what="it reads again")


def test_a_restarted_process_has_what_its_predecessor_of_the_same_name_left(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    sent = add(redis_client, *"abc")
    with closing(adapter_for(redis_url)) as first:
        receive(first, 2)
    with closing(adapter_for(redis_url)) as second:
        assert ids(drain(second)) == sent


def test_what_a_dead_process_of_this_host_left_is_taken_over_at_once(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    sent = add(redis_client, *"abcdef")
    with reader(redis_url, "die", 4), closing(adapter_for(redis_url, claim_idle="1h")) as adapter:
        assert pending(redis_client) == 4
        began = time.monotonic()
        got = drain(adapter)
        assert time.monotonic() - began < 5
        assert sorted(map(str, ids(got))) == sent
        assert {each.tries for each in got} == {1}
        rows = pending_rows(redis_client)
        assert {row["times_delivered"] for row in rows} == {1}, "taking over is no delivery"
        adapter.acknowledge(got)
        assert pending(redis_client) == 0


def test_a_dead_process_that_left_nothing_is_forgotten(redis_url: str, redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    with reader(redis_url, "die", 1), closing(adapter_for(redis_url)) as adapter:
        adapter.acknowledge(take_over(adapter, 1)[:1])
        assert pending(redis_client) == 0
    with closing(adapter_for(redis_url)) as adapter:
        assert take_over(adapter) == []
        assert len(redis_client.xinfo_consumers("deploys", "switchboard")) == 1


def test_what_a_living_process_holds_is_left_to_it_until_it_is_silent_for_claim_idle(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    sent = add(redis_client, *"abc")
    with reader(redis_url, "stay", 3), closing(adapter_for(redis_url, claim_idle="2s")) as adapter:
        began = time.monotonic()
        assert take_over(adapter) == []
        assert receive(adapter, within=timedelta(seconds=1)) == []
        assert take_over(adapter) == []

        found: list[Delivery] = []

        def read() -> bool:
            found.extend(take_over(adapter))
            return len(found) == 3

        eventually(read, what="it is claimed")
        assert time.monotonic() - began > 1
        assert ids(found) == sent
        assert {row["times_delivered"] for row in pending_rows(redis_client)} == {1}
        assert min(row["time_since_delivered"] for row in pending_rows(redis_client)) < 2000


@pytest.mark.parametrize("consumer", ["another-host/-/1/-", "somebody's own reader", "", "a/b/c/d/e"])
def test_what_a_reader_elsewhere_left_is_claimed_only_after_claim_idle(
    redis_url: str, redis_client: "redis.Redis", consumer: str
) -> None:
    sent = add(redis_client, "a")
    redis_client.xgroup_create("deploys", "switchboard", "0")
    redis_client.xreadgroup("switchboard", consumer, {"deploys": ">"})
    with closing(adapter_for(redis_url, claim_idle="1s")) as adapter:
        assert take_over(adapter) == []
        assert receive(adapter) == []
        redis_client.xclaim("deploys", "switchboard", consumer, 0, [*sent], idle=1500, justid=True)
        found = eventually(lambda: take_over(adapter), what="it is claimed")
        assert ids(found) == sent


def test_what_is_kept_is_not_claimed_by_another(redis_url: str, redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    with reader(redis_url, "stay", 1) as other:
        (row,) = pending_rows(redis_client)
        with closing(adapter_for(redis_url, claim_idle="1s")) as adapter:
            # Given a process that keeps what it works on, as this one does now
            held = eventually(lambda: take_over(adapter), what="this one has claimed it")
            other.kill()
            redis_client.xclaim(
                "deploys", "switchboard", pending_rows(redis_client)[0]["consumer"], 0, [row["message_id"]],
                idle=60_000, justid=True,
            )  # fmt: skip
            adapter.keep(held)
            (kept,) = pending_rows(redis_client)
            assert kept["time_since_delivered"] < 1000
            assert kept["times_delivered"] == 1
        assert not redis_client.xautoclaim("deploys", "switchboard", "another", 1000)[1]


def test_what_is_given_back_is_had_by_another_process_at_once(redis_url: str, redis_client: "redis.Redis") -> None:
    add(redis_client, *"ab")
    with closing(adapter_for(redis_url)) as adapter:
        adapter.give_back(receive(adapter))
        # Another process that is alive beside this one, with the default claim_idle of a minute.
        with reader(redis_url, "stay", 2):
            rows = pending_rows(redis_client)
            assert {row["times_delivered"] for row in rows} == {1}, "no attempt is counted"
            assert len({row["consumer"] for row in rows}) == 1
            consumers = redis_client.xinfo_consumers("deploys", "switchboard")
            assert sorted(each["pending"] for each in consumers) == [0, 2]


def test_what_is_given_back_can_be_had_by_this_process_too(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *"ab")
    with closing(adapter_for(redis_url)) as adapter:
        adapter.give_back(receive(adapter))
    with closing(adapter_for(redis_url)) as again:
        assert ids(drain(again)) == sent


def test_a_delivery_that_is_taken_over_says_how_often_it_was_tried(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *"ab")
    with reader(redis_url, "die", 2), closing(adapter_for(redis_url)) as adapter:
        first, second = take_over(adapter)
        adapter.count_tries([second], 3)
        adapter.give_back([first, second])
        again = take_over(adapter)
    assert [(each.handle, each.tries) for each in again] == [(sent[0], 1), (sent[1], 3)]
    assert [row["times_delivered"] for row in pending_rows(redis_client)] == [1, 3]


def test_an_empty_consumer_elsewhere_is_removed_once_it_is_idle_for_claim_idle(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    add(redis_client, "a")
    redis_client.xgroup_create("deploys", "switchboard", "0")
    redis_client.xreadgroup("switchboard", "another-host/-/1/-", {"deploys": ">"})
    redis_client.xgroup_createconsumer("deploys", "switchboard", "another-host/-/2/-")

    def consumers() -> set[str]:
        return {as_text(each["name"]) for each in redis_client.xinfo_consumers("deploys", "switchboard")}

    with closing(adapter_for(redis_url, claim_idle="1h")) as patient:
        take_over(patient)
        assert {"another-host/-/1/-", "another-host/-/2/-"} <= consumers()
    time.sleep(0.3)
    with closing(adapter_for(redis_url, claim_idle="200ms")) as adapter:
        (got,) = take_over(adapter)
        assert json.loads(got.body) == {"body": "a"}, "no entry is thrown away with its consumer"
        assert pending(redis_client) == 1
        assert consumers() == {pending_rows(redis_client)[0]["consumer"].decode()}


def test_with_delete_what_is_acknowledged_leaves_the_stream(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *"abc")
    with closing(adapter_for(redis_url, delete=True)) as adapter:
        got = receive(adapter)
        adapter.acknowledge(got[:2])
        adapter.acknowledge(got[:2])
        assert pending(redis_client) == 1
        assert redis_client.xrange("deploys") == [(sent[2].encode(), {b"body": b"c"})]


def test_a_producers_own_key_stands_for_the_entrys_id(redis_url: str) -> None:
    with closing(adapter_for(redis_url, body="data", key="key")) as adapter:
        sent = adapter.send([Outgoing(b"1", idempotency_key="k"), Outgoing(b"2", {"x": "y"})])
        first, second = receive(adapter)
        assert (first.native_id, second.native_id) == ("key:k", sent[1])
        assert [first.handle, second.handle] == sent
        adapter.acknowledge([first, second])
        assert adapter.lag().pending == 0


@pytest.mark.parametrize("sign", ["k", "ä", "€"])
def test_a_producers_key_that_is_longer_than_an_index_holds_is_its_hash(redis_url: str, sign: str) -> None:
    longest = sign * (500 // len(sign.encode()))
    with closing(adapter_for(redis_url, body="data", key="key")) as adapter:
        adapter.send([Outgoing(b"1", idempotency_key=key) for key in (longest, longest + sign, longest + sign * 2)])
        kept, *hashed = [delivery.native_id for delivery in receive(adapter)]
    assert kept == f"key:{longest}"
    assert hashed == [f"key:sha256:{sha256(key.encode()).hexdigest()}" for key in (longest + sign, longest + sign * 2)]


def test_messages_are_sent_all_or_none(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    with pytest.raises(PublishRejected):
        adapter.send([Outgoing(b'{"a": "1"}'), Outgoing(b"no object")])
    assert redis_client.exists("deploys") == 0
    sent = adapter.send([Outgoing(b'{"a": "%d"}' % number) for number in range(3)])
    assert redis_client.xrange("deploys") == [
        (entry_id.encode(), {b"a": str(n).encode()}) for n, entry_id in enumerate(sent)
    ]


@pytest.mark.parametrize("how", ["XDEL", "XTRIM"])
def test_what_was_trimmed_while_it_was_pending_is_acknowledged_and_reported(
    redis_url: str, redis_client: "redis.Redis", caplog: pytest.LogCaptureFixture, how: str
) -> None:
    sent = add(redis_client, *"abcd")
    with reader(redis_url, "die", 3), closing(adapter_for(redis_url)) as adapter:
        if how == "XDEL":
            redis_client.xdel("deploys", *sent[:2])
        else:
            redis_client.xtrim("deploys", maxlen=2, approximate=False)
        caplog.set_level(logging.ERROR)
        got = drain(adapter)
        assert [row["message_id"].decode() for row in pending_rows(redis_client)] == sent[2:]
        assert ids(got) == sent[2:]
    (record,) = [record for record in caplog.records if "trimmed" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.__dict__["adapter"] == "deploys"
    assert sent[0] in record.getMessage()


def test_own_pending_entries_that_were_trimmed_hold_nothing_up(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *"abc")
    with closing(adapter_for(redis_url)) as first:
        receive(first, 2)
    redis_client.xdel("deploys", *sent[:2])
    with closing(adapter_for(redis_url)) as second:
        assert ids(drain(second)) == sent[2:]
        assert [row["message_id"].decode() for row in pending_rows(redis_client)] == sent[2:]


def test_more_own_pending_entries_than_one_read_takes_all_come(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *map(str, range(700)))
    with closing(adapter_for(redis_url)) as first:
        while receive(first):
            pass
    assert pending(redis_client) == 700
    with closing(adapter_for(redis_url)) as second:
        got = drain(second)
    assert sorted(map(str, ids(got))) == sorted(sent)
    assert {row["times_delivered"] for row in pending_rows(redis_client)} == {1}


def test_two_processes_on_one_group_read_each_entry_once(redis_url: str, redis_client: "redis.Redis") -> None:
    sent = add(redis_client, *map(str, range(40)))
    with reader(redis_url, "stay", 15), closing(adapter_for(redis_url)) as adapter:
        got = drain(adapter)
    assert len(got) == 25
    assert ids(got) == sent[15:]


# Who vouches


@pytest.fixture
def user(redis_client: "redis.Redis", redis_url: str) -> Iterator[str]:
    """The server's address for a user with a password, who may ask who he is."""
    try:
        redis_client.acl_setuser("deploy-bot", enabled=True, passwords=["+hunter2"], keys=["*"], categories=["+@all"])
    except redis.exceptions.NoPermissionError:
        pytest.skip("this server lets us make no user")
    yield urlsplit(redis_url)._replace(netloc=f"deploy-bot:hunter2@{urlsplit(redis_url).netloc}").geturl()
    redis_client.acl_deluser("deploy-bot")


def test_the_identity_is_the_user_that_the_server_knows(user: str, redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    with closing(adapter_for(user)) as adapter:
        (got,) = receive(adapter)
        assert got.verify_detail == "redis acl: deploy-bot"
        assert adapter.identity() == "redis acl: deploy-bot"
        assert "hunter2" not in repr(adapter) + str(adapter.describe()) + adapter.broker + repr(adapter.options)


def test_where_asking_is_denied_it_is_the_addresss_user(user: str, redis_client: "redis.Redis") -> None:
    redis_client.execute_command("ACL", "SETUSER", "deploy-bot", "-acl|whoami")  # type: ignore[no-untyped-call]
    add(redis_client, "a")
    with closing(adapter_for(user)) as adapter:
        (got,) = receive(adapter)
    assert got.verify_detail == "redis acl: deploy-bot"


def test_a_wrong_password_is_refused_and_not_shown(user: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        closing(adapter_for(user.replace("hunter2", "hunter3"))) as adapter,
        pytest.raises(BrokerUnavailable) as failure,
    ):
        receive(adapter)
    assert "hunter3" not in str(failure.value) + repr(failure.value.__cause__) + caplog.text


def test_a_right_that_is_missing_is_named(user: str, redis_client: "redis.Redis") -> None:
    redis_client.execute_command("ACL", "SETUSER", "deploy-bot", "-xreadgroup")  # type: ignore[no-untyped-call]
    with closing(adapter_for(user)) as adapter, pytest.raises(BrokerUnavailable, match="xreadgroup"):
        receive(adapter)


# A server that is away


def test_a_server_that_is_away_is_broker_unavailable_and_after_its_return_all_goes_on(
    own_valkey: ValkeyServer,
) -> None:
    with closing(adapter_for(own_valkey.url)) as adapter, redis.Redis.from_url(own_valkey.url) as client:
        add(client, "a", "b")
        held = receive(adapter, 1)
        own_valkey.kill()
        for attempt in (
            lambda: receive(adapter),
            lambda: adapter.keep(held),
            lambda: adapter.give_back(held),
            lambda: adapter.lag(),
            lambda: adapter.identity(),
            lambda: publish(adapter, b'{"a": "1"}'),
        ):
            with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"):
                attempt()
        with pytest.raises(AckFailed, match=r"127\.0\.0\.1"):
            adapter.acknowledge(held)
        own_valkey.start()

        assert len(receive(adapter)) == 1
        adapter.acknowledge(held)
        assert pending(client) == 1
        assert publish(adapter, b'{"a": "1"}')


def test_a_server_that_ends_while_it_waits_is_noticed(own_valkey: ValkeyServer) -> None:
    with closing(adapter_for(own_valkey.url)) as adapter, ThreadPoolExecutor(1) as thread:
        receive(adapter)
        waiting = thread.submit(receive, adapter, 500, timedelta(seconds=30))
        with redis.Redis.from_url(own_valkey.url) as client:
            eventually(lambda: "xreadgroup" in {each["cmd"] for each in client.client_list()}, what="it waits")
        own_valkey.kill()
        assert isinstance(waiting.exception(timeout=5), BrokerUnavailable)


@pytest.mark.timeout(60)
def test_a_frozen_server_is_given_up_in_time(own_valkey: ValkeyServer) -> None:
    with closing(adapter_for(own_valkey.url)) as adapter:
        receive(adapter)
        own_valkey.suspend()
        for attempt in (lambda: receive(adapter), adapter.lag):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                attempt()
            assert time.monotonic() - began < 12
        own_valkey.resume()
        assert receive(adapter) == []


def test_a_read_only_replica_is_broker_unavailable_for_all_that_writes(own_valkey: ValkeyServer) -> None:
    with closing(adapter_for(own_valkey.url)) as adapter, redis.Redis.from_url(own_valkey.url) as client:
        receive(adapter)
        client.execute_command("CONFIG", "SET", "replica-serve-stale-data", "yes")
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BrokerUnavailable):
            receive(adapter)
        with pytest.raises(BrokerUnavailable):
            publish(adapter, b'{"a": "1"}')
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert publish(adapter, b'{"a": "1"}')
        assert len(receive(adapter)) == 1


@pytest.mark.usefixtures("redis_client", "nothing_left_behind")
def test_close_leaves_no_connection_and_the_next_call_opens_it_again(redis_url: str) -> None:
    adapter = adapter_for(redis_url)
    receive(adapter)
    adapter.close()
    adapter.close()
    assert receive(adapter) == []
    adapter.close()
    del adapter


# TLS


class TlsFront:
    """TLS in front of a real server, as stunnel does it: the server from the wheel has none of its own."""

    def __init__(self, certificate: Path, key: Path, host: str, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._ending = False
        self._threads = [threading.Thread(target=self._accept)]
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "TlsFront":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ending:
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                thread.start()
                self._threads.append(thread)

    def _serve(self, raw: socket.socket) -> None:
        with raw, suppress(OSError):
            raw.settimeout(5)
            with (
                self._context.wrap_socket(raw, server_side=True) as client,
                socket.create_connection(self._server) as server,
            ):
                while not self._ending:
                    if client.pending() or client in select.select([client, server], [], [], 0.05)[0]:
                        data = client.recv(65_536)
                        if not data:
                            return
                        server.sendall(data)
                    if server in select.select([server], [], [], 0)[0]:
                        data = server.recv(65_536)
                        if not data:
                            return
                        client.sendall(data)


@pytest.fixture
def tls(tmp_path: Path, redis_url: str) -> Iterator[tuple[str, Path]]:
    """The address of a TLS server, and the certificate of who signed for it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = urlsplit(redis_url)
    assert server.hostname
    with TlsFront(certificate, key, server.hostname, server.port or 6379) as front:
        yield f"rediss://127.0.0.1:{front.port}{server.path}", certificate


def test_a_stream_behind_tls_is_read_where_its_certificate_is_trusted(
    tls: tuple[str, Path], redis_client: "redis.Redis"
) -> None:
    url, certificate = tls
    sent = add(redis_client, "a", "b" * 200_000)
    with closing(adapter_for(f"{url}?ssl_ca_certs={certificate}")) as adapter:
        got = drain(adapter)
        assert pending(redis_client) == 2
        adapter.acknowledge(got)
        assert pending(redis_client) == 0
        assert ids(got) == sent
        assert adapter.broker.startswith("rediss://127.0.0.1:")
        assert "ssl_ca_certs" not in adapter.broker


def test_a_certificate_that_nobody_trusts_is_refused(tls: tuple[str, Path], redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    with closing(adapter_for(tls[0])) as adapter, pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        receive(adapter)
    assert redis_client.xinfo_groups("deploys") == []


def test_the_process_is_named_for_its_host_and_pid(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    add(redis_client, "a")
    receive(adapter)
    (consumer,) = redis_client.xinfo_consumers("deploys", "switchboard")
    host, _, pid, _ = consumer["name"].decode().split("/")
    assert (host, pid) == (socket.gethostname(), str(os.getpid()))
