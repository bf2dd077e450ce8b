"""What a sender may ask of this process: how much, how slowly and how many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from starlette.exceptions import HTTPException
from starlette.types import Receive

#: Seconds after which whoever is told to come again may.
RETRY_AFTER = 5

#: Bytes of bodies held at once, by all requests together.
MAX_HELD = 256 * 1024**2


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
        self._held = 0

    @contextmanager
    def admitted(self) -> Iterator[Admission]:
        """Counts a request while it is worked on; 503 where there are too many already."""
        if self._in_progress >= self._max_in_progress:
            raise come_again("too many requests in progress")
        self._in_progress += 1
        admission = Admission(self)
        try:
            yield admission
        finally:
            self._in_progress -= 1
            self._held -= admission.held

    def hold(self, size: int) -> None:
        """Counts bytes that are held; 503 where they are too many."""
        if self._held + size > MAX_HELD:
            raise come_again("too many bytes in progress")
        self._held += size

    @property
    def read_seconds(self) -> float:
        """How long a body may take."""
        return self._read_seconds


class Admission:
    """One request's part of what is in progress."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: Bytes of its body that are held.
        self.held = 0

    async def body(self, receive: Receive, headers: dict[bytes, bytes], max_body: int) -> bytes:
        """The request's whole body, counted while it comes.

        413 where it is longer than ``max_body``, 408 where it takes too long, 415 where it is compressed: a signature
        is of the bytes as sent, and none of the known senders compresses. ``Gone`` where the sender hangs up.
        """
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise HTTPException(415, "compressed bodies are not taken")
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > max_body:
            raise _too_large(max_body)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    part = message.get("body", b"")
                    if self.held + len(part) > max_body:
                        raise _too_large(max_body)
                    self._limits.hold(len(part))
                    self.held += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise HTTPException(408, "the body took too long", {"Connection": "close"}) from None


def _too_large(max_body: int) -> HTTPException:
    return HTTPException(413, f"the body is longer than {max_body:,} bytes")
