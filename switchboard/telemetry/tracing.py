"""Traces: a message's ``traceparent`` goes on, from its producer to the handler of its todo (W3C Trace Context).

Spans are made where OpenTelemetry is installed and a tracer provider is set, which is a team's own affair. It is never
imported before somebody else has: without that there is no provider, and asking costs a dictionary's look-up.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..redact import redact, safe_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

#: The headers of the W3C Trace Context, in lower case.
TRACE_HEADERS = ("traceparent", "tracestate")

#: Links of one span, at most, as the SDK's own limit is: a batch has up to ten thousand producers.
MOST_LINKS = 128

#: Characters of a ``tracestate`` that are read; a longer one is left out (W3C Trace Context, 3.3.1.5: at least 512).
LONGEST_STATE = 4_096


def is_on() -> bool:
    """Whether spans are made in this process: some tracer provider is set."""
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of the headers that say which trace they are of, under their names in lower case."""
    found = {name.lower(): value for name, value in headers.items() if name.lower() in TRACE_HEADERS}
    return found if "traceparent" in found else {}


def inject(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers with the context of the current span added; as they are where there is none, or they have one.

    For whatever sends a message on or takes one in: a publisher, a webhook's request.
    """
    if not is_on() or trace_headers(headers):
        return headers
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = dict(headers)
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


@contextmanager
def ingest_span(adapter: str, *, system: str, destination: str, headers: Sequence[Mapping[str, str]]) -> Iterator[None]:
    """The span in which a batch is stored. A batch has many parents: it is linked to each message's context.

    ``system`` and ``destination`` are the source's, as OpenTelemetry's conventions for messaging name them; there is
    one of ``headers`` a message. Only where ``is_on()``.
    """
    from opentelemetry.trace import SpanKind

    span = _tracer().start_span(
        f"switchboard ingest {adapter}",
        kind=SpanKind.CONSUMER,
        links=list(_links(headers)),
        attributes={
            "messaging.system": system,
            "messaging.destination.name": destination,
            "messaging.operation.name": "ingest",
            "messaging.operation.type": "process",
            "messaging.batch.message_count": len(headers),
            "switchboard.adapter": adapter,
        },
    )
    with _current(span):
        yield


@contextmanager
def process_span(queue: str, *, todo_id: int, attempt: int, message: str, headers: Mapping[str, str]) -> Iterator[None]:
    """The span in which a todo's handler runs: a child of its producer's, of whom ``headers`` tell.

    ``message`` names what is handled (``deploys:17``). Only where ``is_on()``.
    """
    from opentelemetry.trace import SpanKind

    span = _tracer().start_span(
        f"process {queue}",
        # Not the current context: what happens to be open in this thread is no producer of this todo.
        context=_context(headers),
        kind=SpanKind.CONSUMER,
        attributes={
            "messaging.system": "switchboard",
            "messaging.destination.name": queue,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": message,
            "switchboard.queue": queue,
            "switchboard.todo_id": todo_id,
            "switchboard.attempt": attempt,
        },
    )
    with _current(span):
        yield


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """The span is the current one inside; what is raised there is recorded, with no body and no credential."""
    from opentelemetry.trace import Status, StatusCode, use_span

    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            # The frames alone: the text of an error further down its chain can quote what PostgreSQL was given.
            frames = "".join(traceback.format_tb(error.__traceback__))
            said = safe_text(error)
            span.record_exception(
                error, attributes={"exception.message": said, "exception.stacktrace": redact(f"{frames}{said}")}
            )
            span.set_status(Status(StatusCode.ERROR, said))
            raise


def _links(every: Iterable[Mapping[str, str]]) -> Iterator[Link]:
    """A link to each context that is valid, once, up to ``MOST_LINKS``."""
    from opentelemetry.trace import Link, get_current_span

    seen = set()
    for headers in every:
        parent = get_current_span(_context(headers)).get_span_context()
        if parent.is_valid and (parent.trace_id, parent.span_id) not in seen:
            seen.add((parent.trace_id, parent.span_id))
            yield Link(parent)
            if len(seen) == MOST_LINKS:
                return


def _context(headers: Mapping[str, str]) -> Context:
    """The context that the headers tell of; an empty one where they tell of none, or of an invalid one."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = trace_headers(headers)
    if len(carrier.get("tracestate", "")) > LONGEST_STATE:
        del carrier["tracestate"]
    return TraceContextTextMapPropagator().extract(carrier, Context()) if carrier else Context()


def _tracer() -> Tracer:
    from opentelemetry.trace import get_tracer

    return get_tracer("switchboard")
