"""Dramatiq middleware, one a file; a broker with ``AdapterQueues`` has all of them."""

from .lifecycle import Lifecycle
from .log_format import LogFormat
from .sentry_context import SentryContext
from .store_then_ack import StoreThenAck
from .traces import Traces

__all__ = ["Lifecycle", "LogFormat", "SentryContext", "StoreThenAck", "Traces"]
