"""What a sender may ask of this process: how much, how slowly and how many at once."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

from starlette.exceptions import HTTPException
from starlette.types import Receive

from ..push.base import MOST_HELD

#: How long a statement may take: the sender waits, and GitHub gives up after ten seconds.
STATEMENT_TIMEOUT = timedelta(seconds=8)

#: Seconds after which whoever is told to come again may.
RETRY_AFTER = 5

#: Bytes from which on a body is verified in a thread, and shaped when no other such is: its JSON may take 60 times as
#: much memory as itself.
LONG_BODY = 256 * 1024

#: Requests whose bodies are on their way, at most, and those of one address: nobody is verified yet.
MAX_BEING_READ, MAX_BEING_READ_OF_ONE = 1000, 100

#: Bytes of bodies held of one address, at most; one body may be as long as its adapter takes, whatever this says.
MOST_HELD_OF_ONE = MOST_HELD // 8


class Gone(Exception):
    """The sender has hung up: there is nobody to answer."""


def come_again(why: str) -> HTTPException:
    """503: nothing was stored, and the same request may be answered soon."""
    return HTTPException(503, why, {"Retry-After": str(RETRY_AFTER)})


class Limits:
    """What all requests have in common; used by the thread of the event loop alone."""

    def __init__(self, max_in_progress: int, read_timeout: timedelta) -> None:
        self._max_in_progress = max_in_progress
        self._read_seconds = read_timeout.total_seconds()
        self._in_progress = 0
        self._being_read: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    @asynccontextmanager
    async def body(
        self, receive: Receive, headers: dict[bytes, bytes], max_body: int, source_ip: str | None
    ) -> AsyncIterator[bytes]:
        """The request's whole body, counted while it comes; what is inside is in progress.

        413 where it is longer than ``max_body``, 408 where it takes too long, 415 where it is compressed: a signature
        is of the bytes as sent, and none of the known senders compresses. 503 where there are too many requests, or
        too many bytes, of all or of its address. ``Gone`` where the sender hangs up.
        """
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise HTTPException(415, "compressed bodies are not taken")
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > max_body:
            raise _too_large(max_body)
        source = _network(source_ip)
        with self._holding(source, max(max_body, MOST_HELD_OF_ONE)) as hold:
            body = await self._read(receive, max_body, source, hold)
            with self._working():
                yield body

    async def _read(self, receive: Receive, max_body: int, source: str, hold: Callable[[int], None]) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        try:
            with self._reading(source):
                async with asyncio.timeout(self._read_seconds):
                    while more:
                        part, more = await _part(receive)
                        size += len(part)
                        if size > max_body:
                            raise _too_large(max_body)
                        hold(len(part))
                        parts.append(part)
        except TimeoutError:
            raise HTTPException(408, "the body took too long", {"Connection": "close"}) from None
        return b"".join(parts)

    @contextmanager
    def _holding(self, source: str, most_of_one: int) -> Iterator[Callable[[int], None]]:
        """Bytes that are held, of all together and of this source, until what is inside has ended."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._held[source] + size > most_of_one or self._held.total() + size > MOST_HELD:
                raise come_again("too many bytes in progress")
            self._held[source] += size
            held += size

        try:
            yield hold
        finally:
            self._held[source] -= held
            if not self._held[source]:
                del self._held[source]

    @contextmanager
    def _reading(self, source: str) -> Iterator[None]:
        if self._being_read[source] >= MAX_BEING_READ_OF_ONE or self._being_read.total() >= MAX_BEING_READ:
            raise come_again("too many requests are being read")
        self._being_read[source] += 1
        try:
            yield
        finally:
            self._being_read[source] -= 1
            if not self._being_read[source]:
                del self._being_read[source]

    @contextmanager
    def _working(self) -> Iterator[None]:
        if self._in_progress >= self._max_in_progress:
            raise come_again("too many requests in progress")
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether more are to come."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    return message.get("body", b""), message.get("more_body", False)


def _network(source_ip: str | None) -> str:
    """Who counts as one: an address, or the /64 of it that one host of IPv6 has to choose from."""
    if source_ip is None or ":" not in source_ip:
        return source_ip or ""
    return str(ipaddress.ip_network((source_ip, 64), strict=False))


def _too_large(max_body: int) -> HTTPException:
    return HTTPException(413, f"the body is longer than {max_body:,} bytes")
