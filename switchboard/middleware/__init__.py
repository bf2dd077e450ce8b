"""Dramatiq middleware, one a file; a broker with ``AdapterQueues`` has all of them."""

from .lifecycle import Lifecycle
from .store_then_ack import StoreThenAck

__all__ = ["Lifecycle", "StoreThenAck"]
