"""The queue family: ``base`` is the interface, and there is one file a transport."""

from .base import AdapterOptions, Lag, PullAdapter
from .redis_stream import RedisStream

#: The transports by the ``type`` of their configuration table.
TRANSPORTS: dict[str, type[PullAdapter]] = {transport.transport: transport for transport in (RedisStream,)}

__all__ = ["TRANSPORTS", "AdapterOptions", "Lag", "PullAdapter", "RedisStream"]
