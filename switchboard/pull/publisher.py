"""Puts messages on an adapter's source: tries again what may pass, and fails at once what may not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice

from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from ..errors import BrokerUnavailable
from ..telemetry.tracing import inject
from .base import Outgoing, PullAdapter

#: How long a publish is tried before it gives up.
PUBLISH_TIMEOUT = timedelta(seconds=30)

#: Seconds between two tries: jittered, doubling, at most the second.
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0

#: Messages sent in one step.
CHUNK = 500


class Publisher:
    """``Publisher(adapter).publish(b"…", headers={…}, idempotency_key="…")``.

    A try whose answer is lost may have put its message there already, and the next puts it there again: give an
    ``idempotency_key``, to an adapter with the option ``key``, where that must not make a second todo. Where a span is
    open, its context goes along as the header ``traceparent``, if the adapter's messages have headers.
    """

    def __init__(self, adapter: PullAdapter, *, timeout: timedelta = PUBLISH_TIMEOUT) -> None:
        self._adapter = adapter
        self._retrying = Retrying(
            retry=retry_if_exception_type(BrokerUnavailable),
            wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
            stop=stop_before_delay(timeout),
            reraise=True,
        )

    def publish(self, body: bytes, headers: Mapping[str, str] | None = None, idempotency_key: str | None = None) -> str:
        """Publishes one message and returns its id at the source.

        Raises ``BrokerUnavailable`` where the broker does not take it within the timeout, and ``PublishRejected``
        at once where it never will.
        """
        return self._send([Outgoing(body, dict(headers or {}), idempotency_key)])[0]

    def publish_many(self, messages: Iterable[Outgoing]) -> Iterator[str]:
        """Publishes them in steps of ``CHUNK``, each whole or not at all, and yields their ids; raises as above."""
        remaining = iter(messages)
        while chunk := list(islice(remaining, CHUNK)):
            yield from self._send(chunk)

    def _send(self, messages: Sequence[Outgoing]) -> list[str]:
        if self._adapter.carries_headers:
            messages = [replace(message, headers=inject(message.headers)) for message in messages]
        return self._retrying(self._adapter.send, messages)
