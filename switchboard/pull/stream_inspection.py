"""What can be wrong with a stream and its consumer group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis

from ..finding import Finding
from .redis_client import as_text, execute
from .redis_inspection import not_looked_at

#: A group that nobody has: what is asked of it changes nothing.
NO_GROUP = "switchboard.doctor"


def harmless(stream: str, group: str, *, delete: bool) -> list[Sequence[str]]:
    """Each command that reading needs, in a form that changes nothing: the server looks at the user's rights first."""
    commands: list[Sequence[str]] = [
        ("XGROUP", "CREATE", stream, group, "no-id"),
        ("XREADGROUP", "GROUP", NO_GROUP, NO_GROUP, "COUNT", "1", "STREAMS", stream, ">"),
        ("XACK", stream, NO_GROUP, "0-1"),
        ("XCLAIM", stream, NO_GROUP, NO_GROUP, "0", "0-1", "JUSTID"),
        ("XPENDING", stream, NO_GROUP, "-", "+", "1"),
        ("XINFO", "STREAM", stream),
        ("XINFO", "GROUPS", stream),
        ("XINFO", "CONSUMERS", stream, group),
        ("XRANGE", stream, "0-1", "0-1"),
    ]
    if delete:
        commands += [("XDEL", stream, "0-1"), ("EXEC",)]
    return commands


def inspect_stream(client: redis.Redis, subject: str, stream: str, group: str, *, parks: bool) -> Iterator[Finding]:
    """Whether the stream and the group are there, what waits, and whether anything was trimmed before it was stored.

    ``parks``: whether stored entries stay pending, so that their loss is none.
    """
    try:
        about = _pairs(execute(client, "XINFO STREAM", stream))
        groups = [_pairs(each) for each in execute(client, "XINFO GROUPS", stream)]
    except redis.exceptions.NoPermissionError:
        yield not_looked_at("group", subject, stream, "+xinfo")
        return
    except redis.ResponseError as error:
        yield _not_a_stream(subject, stream, str(error))
        return
    ours = next((each for each in groups if as_text(each["name"]) == group), None)
    if ours is None:
        yield Finding(
            "group", subject, "warning", f"stream {stream} has no consumer group {group}: no worker has read it yet",
            "start a worker, which makes it: `dramatiq switchboard.actors`",
        )  # fmt: skip
        return
    unread = ours.get("lag")
    waiting = "unknown" if unread is None else unread
    yield Finding("group", subject, "ok", f"unread {waiting}, pending {ours['pending']}, consumers {ours['consumers']}")
    yield from _trimmed_unread(subject, stream, group, about, ours)
    if ours["pending"] and not parks:
        yield from _trimmed_pending(client, subject, stream, group)


def _not_a_stream(subject: str, stream: str, said: str) -> Finding:
    if "no such key" in said:
        return Finding(
            "stream", subject, "warning", f"there is no stream {stream} yet",
            "see that its name and database are the producer's; a worker makes it when it starts",
        )  # fmt: skip
    return Finding(
        "key_type", subject, "error", f"the key {stream} is not a stream",
        "rename that key or name another stream: somebody else uses this one",
    )  # fmt: skip


def _trimmed_unread(
    subject: str, stream: str, group: str, about: Mapping[str, Any], ours: Mapping[str, Any]
) -> Iterator[Finding]:
    """By the counters that Redis 7 keeps: more was removed from the stream than the group has ever been given."""
    added, read = about.get("entries-added"), ours.get("entries-read")
    if added is None:
        return
    lost = added - about["length"] - (read or 0)
    first = about.get("first-entry")
    passed = first is None or _number(first[0]) > _number(ours["last-delivered-id"])
    if lost > 0 and (read is not None or as_text(ours["last-delivered-id"]) == "0-0") and passed:
        yield Finding(
            "trimmed", subject, "error", f"at least {lost} entries of {stream} were trimmed before {group} read them",
            "let the producer keep more (MAXLEN, MINID), and add workers: what is trimmed is lost",
        )  # fmt: skip


def _trimmed_pending(client: redis.Redis, subject: str, stream: str, group: str) -> Iterator[Finding]:
    """The oldest pending entry is the first to go."""
    try:
        oldest = execute(client, "XPENDING", stream, group, "-", "+", 1)
        if oldest and not execute(client, "XRANGE", stream, oldest[0][0], oldest[0][0]):
            yield Finding(
                "trimmed", subject, "error", f"pending entries of {stream} were trimmed before they were stored",
                "let the producer keep more (MAXLEN, MINID), and see what holds the workers up",
            )  # fmt: skip
    except redis.exceptions.NoPermissionError:
        return


def _pairs(reply: Any) -> dict[str, Any]:
    """A reply of names and values: redis-py makes a dict of some, and leaves others as they are."""
    if isinstance(reply, dict):
        return {as_text(name): value for name, value in reply.items()}
    return {as_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _number(entry_id: Any) -> tuple[int, int]:
    milliseconds, _, sequence = as_text(entry_id).partition("-")
    return int(milliseconds), int(sequence or 0)
