"""What is sent: bodies of a size, on a stream or a list, and how many of them are acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import redis

from .servers import Servers

#: Stream, list, consumer group, todo queue and adapter are all called so.
NAME = "bench"

#: The entry field that holds the body. FastStream reads this one, and an adapter reads what it is told.
FIELD = "__data__"

GROUP = "switchboard"

#: Bytes of a body, by the name it has in the results.
SIZES = {"300 B": 300, "10 KB": 10_000}

#: Nested deeper than the ledger takes: a dead letter.
BAD = b'{"event": "deploy.finished", "nested": ' + b"[" * 600 + b"]" * 600 + b"}"


def body(number: int, size: int) -> bytes:
    """A JSON object of about ``size`` bytes, such as a build server sends: many short fields, and no two alike."""
    event: dict[str, Any] = {
        "event": "deploy.finished",
        "repository": "acme/api",
        "number": number,
        "ok": True,
        "steps": [],
    }
    step = {"name": "unit tests", "seconds": 12.5, "exit": 0, "log": "all passed"}
    event["steps"] = [step] * max(0, (size - 110) // 70)
    text = json.dumps(event)
    event["note"] = "." * max(0, size - len(text) - 12)
    return json.dumps(event).encode()


def publish(servers: Servers, bodies: Iterable[bytes], *, kind: str = "stream", name: str = NAME) -> None:
    """Puts them on the stream or list, a thousand in a round trip."""
    with servers.client() as client:
        if kind == "stream":
            _make_group(client, name)
        pipeline = client.pipeline(transaction=False)
        for number, one in enumerate(bodies, 1):
            if kind == "stream":
                pipeline.xadd(name, {FIELD: one})
            else:
                pipeline.lpush(name, one)
            if number % 1000 == 0:
                pipeline.execute()
        pipeline.execute()


def _make_group(client: redis.Redis, name: str) -> None:
    try:
        client.xgroup_create(name, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise


def deliver_again(client: redis.Redis, name: str = NAME) -> None:
    """Lets the group begin at the stream's start once more."""
    client.execute_command("XGROUP", "SETID", name, GROUP, "0", "ENTRIESREAD", "0")  # type: ignore[no-untyped-call]


def read(client: redis.Redis, consumer: str, count: int, name: str = NAME) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """New entries of the stream, as that consumer; waits a second for the first."""
    answer: Any = client.xreadgroup(GROUP, consumer, {name: ">"}, count=count, block=1000)
    return [entry for _, entries in answer or [] for entry in entries]


def acknowledged(client: redis.Redis, name: str = NAME) -> int:
    """How many of the stream's entries were read and acknowledged."""
    for group in client.xinfo_groups(name):
        if group["name"] in (GROUP, GROUP.encode()):
            return int(group["entries-read"] or 0) - int(group["pending"])
    return 0


def taken(client: redis.Redis, total: int, name: str = NAME) -> int:
    """How many of ``total`` are neither in the list nor in anybody's processing list."""
    lists = list(client.scan_iter(count=1000, _type="list"))
    return total - sum(int(client.llen(key)) for key in lists)
