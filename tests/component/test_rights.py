"""The rights that docs/guarantees.md asks for are enough for all an adapter does, and none of them is too much."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from waiting import eventually

from switchboard.embedded import ValkeyServer
from switchboard.model import Delivery
from switchboard.pull import Outgoing, RedisList, RedisPubSub, RedisStream
from switchboard.pull.redis_adapter import CAUTIOUS_COUNT, RedisAdapter
from switchboard.pull.redis_client import as_text, execute
from switchboard.pull.redis_list import FIRST_FILL

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"

SOON, MEGABYTE = timedelta(milliseconds=100), 1024**2

#: More than a careful first read takes.
MANY = CAUTIOUS_COUNT * 3

#: The keys and the channel of adapters that read `deploys`, as the page gives them.
KEYS = {
    "streams": ["~deploys"],
    "lists": ["~deploys", "~{deploys}:switchboard:*"],
    "pub/sub": ["resetchannels", "&deploys"],
}


@dataclass(frozen=True)
class Rights:
    """What the page's sentence asks for, by its own words."""

    needed: dict[str, list[str]]
    delete: list[str]
    publish: dict[str, list[str]]
    optional: dict[str, list[str]]

    def all_of(self, transport: str) -> list[str]:
        return [*self.needed[transport], *(self.delete if transport == "streams" else []), *self.publish[transport]]


def read_rights(page: str) -> Rights:
    [paragraph] = [each for each in page.split("\n\n") if each.startswith("The Redis user needs")]
    text = " ".join(paragraph.split())
    words = r"streams (.*?) \((.*?) for `delete`\), lists (.*?), pub/sub (.*?); to publish (.*?)\. (?:.*)Optional: (.*)"
    parts = re.search(words, text)
    assert parts, text
    streams, delete, lists, pubsub, publish, optional = map(str, parts.groups())
    *ways, both = [group.split() for group in re.findall(r"`([^`]*)`", publish)]
    assert len(ways) == 3, publish
    reasons = re.findall(r"((?:`[^`]*`[ ,and]*)+)\(else ([^)]*)\)", optional)
    return Rights(
        needed={"streams": rules(streams), "lists": rules(lists), "pub/sub": rules(pubsub)},
        delete=rules(delete),
        publish={
            transport: [*way, *both] for transport, way in zip(["streams", "lists", "pub/sub"], ways, strict=True)
        },
        optional={why: rules(which) for which, why in reasons},
    )


def rules(text: str) -> list[str]:
    return [rule for group in re.findall(r"`([^`]*)`", text) for rule in group.split() if rule.startswith("+")]


RIGHTS = read_rights(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, valkey: object) -> Iterator[ValkeyServer]:
    """A server whose users are this module's own; skipped where the wheel is missing, as `valkey` is then."""
    with ValkeyServer(tmp_path_factory.mktemp("rights")) as server:
        yield server


@pytest.fixture
def admin(server: ValkeyServer) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        execute(client, "ACL", "LOG", "RESET")
        yield client


Make = Callable[..., RedisAdapter]


@pytest.fixture
def make(server: ValkeyServer, admin: "redis.Redis") -> Make:
    """An adapter whose user has these rights alone."""

    def make(transport: str, *rights: str, database: int = 0, **options: object) -> RedisAdapter:
        execute(admin, "ACL", "SETUSER", "bot", "reset", "on", ">secret", *KEYS[transport], *rights)
        url = f"redis://bot:secret@127.0.0.1:{server.port}/{database}"
        if transport == "streams":
            return RedisStream("deploys", url=url, stream="deploys", queue="q", body="data", **options)
        if transport == "lists":
            return RedisList("deploys", url=url, list="deploys", queue="q", **options)
        return RedisPubSub("deploys", url=url, channel="deploys", queue="q", loss_tolerant=True, **options)

    return make


def receive(adapter: RedisAdapter, limit: int = 500) -> list[Delivery]:
    return adapter.receive(limit, MEGABYTE, SOON)


def exercise(adapter: RedisAdapter, admin: "redis.Redis") -> None:
    """All that an adapter does, as its consumer calls it; the server refuses none of it."""
    if isinstance(adapter, RedisStream):
        exercise_stream(adapter, admin)
    elif isinstance(adapter, RedisList):
        exercise_list(adapter, admin)
    else:
        assert isinstance(adapter, RedisPubSub)
        exercise_pubsub(adapter, admin)


def exercise_stream(adapter: RedisStream, admin: "redis.Redis") -> None:
    assert receive(adapter) == []
    adapter.send([Outgoing(b"a")])
    adapter.send([Outgoing(b"b"), Outgoing(b"c"), Outgoing(b"d"), Outgoing(b"e")])
    first, *others = receive(adapter)
    assert [each.body for each in (first, *others)] == [b"a", b"b", b"c", b"d", b"e"]
    assert first.verify_detail == "redis acl: bot"
    adapter.keep([first])
    adapter.count_tries([first], 2)
    assert admin.xpending_range("deploys", "switchboard", "-", "+", 1)[0]["times_delivered"] == 2
    adapter.acknowledge([first])
    adapter.park(others[:1])
    adapter.give_back(others[1:2])
    assert adapter.lag().pending == 4
    # What this process lost sight of, what another one left, and what is no longer there
    admin.xclaim("deploys", "switchboard", "elsewhere", 0, [others[2].handle], idle=3_600_000)
    admin.xdel("deploys", others[3].handle)
    found = adapter.left_behind(500, MEGABYTE)
    adapter.close()
    assert [each.body for each in found] == [b"c", b"d"]
    adapter.acknowledge([*found, others[0]])
    assert admin.xpending("deploys", "switchboard")["pending"] == 1
    with closing(RedisStream("other", **(adapter.options.model_dump() | {"delete": False}))) as other:
        # A reader that begins anew finds what is pending with its own name: it is lost, and acknowledged.
        assert other.left_behind(500, MEGABYTE) == []
    assert admin.xpending("deploys", "switchboard")["pending"] == 0
    if adapter.options.delete:
        assert admin.xlen("deploys") == 0


def exercise_list(adapter: RedisList, admin: "redis.Redis") -> None:
    assert receive(adapter) == []
    adapter.send([Outgoing(b"a")])
    adapter.send([Outgoing(b"b"), Outgoing(b"c"), Outgoing(b"d")])
    first, second, third, fourth = receive(adapter)
    assert first.verify_detail == "redis acl: bot"
    adapter.keep([first])
    adapter.count_tries([first, second], 2)
    adapter.count_tries([second], 1)
    adapter.acknowledge([replace(first, tries=2), third])
    adapter.count_tries([second], 2)
    assert adapter.lag().pending == 2
    [own] = keys(admin, "{deploys}:switchboard:processing:*")
    adapter.give_back([fourth])
    assert sorted(at_the_source(admin, own)) == ["b", "d"], "lost by giving back"
    # What this process lost sight of, and what another one left
    adapter.close()
    admin.hset("{deploys}:switchboard:workers", "elsewhere", "0")
    admin.lpush("{deploys}:switchboard:processing:elsewhere", b"e")
    with closing(RedisList("other", **adapter.options.model_dump())) as other:
        found = [*other.left_behind(500, MEGABYTE), *receive(other)]
        assert sorted(each.body for each in found) == [b"b", b"d", b"e"]
        assert {each.body: each.tries for each in found}[b"b"] == 2
        other.acknowledge(found)
    assert adapter.lag().pending == 0
    seen = [as_text(name) for name in admin.hkeys("{deploys}:switchboard:workers")]
    assert seen == [own.rpartition("processing:")[2]]
    assert keys(admin, "*") == ["{deploys}:switchboard:workers"]


def keys(admin: "redis.Redis", pattern: str) -> list[str]:
    return [as_text(key) for key in admin.keys(pattern)]


def at_the_source(admin: "redis.Redis", processing: str) -> list[str]:
    return [as_text(body) for key in ("deploys", processing) for body in admin.lrange(key, 0, -1)]


def exercise_pubsub(adapter: RedisPubSub, admin: "redis.Redis") -> None:
    assert receive(adapter) == []
    assert adapter.send([Outgoing(b"a")]) == ["1 receivers"]
    assert adapter.send([Outgoing(b"b"), Outgoing(b"c")]) == ["1 receivers"] * 2
    found: list[Delivery] = []
    eventually(lambda: found.extend(receive(adapter)) or len(found) == 3, what="all are received")  # type: ignore[func-returns-value]
    assert {each.verify_detail for each in found} == {"redis acl: bot"}
    adapter.keep(found)
    adapter.count_tries(found, 2)
    adapter.acknowledge(found[:1])
    adapter.give_back(found[1:])
    assert adapter.left_behind(500, MEGABYTE) == []
    assert adapter.lag().pending == 0
    assert len(adapter.gaps()) == 1


TRANSPORTS = pytest.mark.parametrize("transport", ["streams", "lists", "pub/sub"])


@TRANSPORTS
def test_the_rights_on_the_page_are_enough(transport: str, make: Make, admin: "redis.Redis") -> None:
    rights = [*RIGHTS.needed[transport], *RIGHTS.publish[transport]]
    with closing(make(transport, *rights)) as adapter:
        exercise(adapter, admin)


def test_the_rights_on_the_page_are_enough_to_delete(make: Make, admin: "redis.Redis") -> None:
    with closing(make("streams", *RIGHTS.all_of("streams"), delete=True)) as adapter:
        exercise(adapter, admin)


@TRANSPORTS
def test_the_optional_rights_bring_what_the_page_says(transport: str, make: Make, admin: "redis.Redis") -> None:
    optional = [rule for which in RIGHTS.optional.values() for rule in which]
    delete = {"delete": True} if transport == "streams" else {}
    with closing(make(transport, *RIGHTS.all_of(transport), *optional, **delete)) as adapter:
        exercise(adapter, admin)
    # Nothing was asked for that was refused; the client's own greeting is not ours.
    refused = {entry["object"] for entry in admin.acl_log() if entry["reason"] in ("command", "key", "channel")}
    assert refused <= {"client|setinfo"}


@TRANSPORTS
def test_another_database_than_0_needs_select(transport: str, make: Make, admin: "redis.Redis") -> None:
    """The page need not name it where every example is database 0, or says so."""
    said = "+select" in PAGE.read_text(encoding="utf-8")
    rights = [*RIGHTS.needed[transport], *RIGHTS.publish[transport]]
    with closing(make(transport, *rights, *(["+select"] if said else []), database=1)) as adapter:
        receive(adapter)


@pytest.mark.parametrize("transport", ["streams", "lists"])
def test_without_memory_usage_the_first_read_is_careful_and_with_it_a_full_one(
    transport: str, make: Make, admin: "redis.Redis"
) -> None:
    needed = [*RIGHTS.needed[transport], *RIGHTS.publish[transport]]
    usage = next(which for which in RIGHTS.optional.values() if "+memory|usage" in which)
    full = MANY if transport == "streams" else 1 + FIRST_FILL
    for rights, first_read in ((needed, CAUTIOUS_COUNT), ([*needed, *usage], full)):
        admin.flushall()
        with closing(make(transport, *rights)) as adapter:
            adapter.send([Outgoing(str(number).encode()) for number in range(MANY)])
            assert len(receive(adapter)) == first_read


def test_with_eval_an_empty_consumer_of_another_host_is_removed(make: Make, admin: "redis.Redis") -> None:
    evaluate = next(which for which in RIGHTS.optional.values() if "+eval" in which)
    for rights, left in (([], 2), (evaluate, 1)):
        admin.flushall()
        with closing(make("streams", *RIGHTS.all_of("streams"), *rights, claim_idle="100ms")) as adapter:
            receive(adapter)
            admin.xgroup_createconsumer("deploys", "switchboard", "elsewhere")
            eventually(lambda: all(each["idle"] > 150 for each in consumers(admin)), what="it is idle")
            adapter.left_behind(500, MEGABYTE)
        assert len(consumers(admin)) == left


def consumers(admin: "redis.Redis") -> list[dict[str, int]]:
    return list(admin.xinfo_consumers("deploys", "switchboard"))


def test_what_a_stopping_worker_leaves_of_a_list_is_never_lost_and_with_eval_there_at_once(
    make: Make, admin: "redis.Redis"
) -> None:
    evaluate = next(which for which in RIGHTS.optional.values() if "+eval" in which)
    for rights in ([], evaluate):
        admin.flushall()
        with closing(make("lists", *RIGHTS.all_of("lists"), *rights)) as adapter:
            adapter.send([Outgoing(b"a"), Outgoing(b"b")])
            held = receive(adapter)
            [own] = keys(admin, "{deploys}:switchboard:processing:*")
            with suppress(Exception):
                adapter.give_back(held)
        assert sorted(at_the_source(admin, own)) == ["a", "b"], "lost"
    assert admin.llen("deploys") == 2, "not given back"


#: Each right of the page, with the transport that it is named for. Many messages are one LPUSH: to a list alone is
#: published without a transaction.
EACH = [
    (transport, right)
    for transport, needed in RIGHTS.needed.items()
    for right in dict.fromkeys(RIGHTS.all_of(transport))
    if transport != "lists" or right in (*needed, "+lpush")
]


@pytest.mark.parametrize(("transport", "right"), EACH)
def test_each_right_on_the_page_is_needed(transport: str, right: str, make: Make, admin: "redis.Redis") -> None:
    delete = {"delete": True} if transport == "streams" else {}
    rights = [other for other in RIGHTS.all_of(transport) if other != right]
    with closing(make(transport, *rights, **delete)) as adapter, pytest.raises(Exception, match=rf"(?i)'?{right[1:]}"):
        exercise(adapter, admin)


def test_a_page_that_leaves_one_out_is_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    less = read_rights(page.replace(" +xack", "").replace(" +hdel", ""))
    assert "+xack" in RIGHTS.needed["streams"]
    assert "+xack" not in less.needed["streams"]
    assert less.needed["streams"] == [right for right in RIGHTS.needed["streams"] if right != "+xack"]
