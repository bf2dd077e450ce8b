"""The queue family: ``base`` is the interface, and there is one file a transport."""

from .base import Gap, Lag, Outgoing, PullAdapter, PullOptions
from .publisher import Publisher
from .redis_list import RedisList
from .redis_pubsub import RedisPubSub
from .redis_stream import RedisStream

#: The transports by the ``type`` of their configuration table.
TRANSPORTS: dict[str, type[PullAdapter]] = {
    transport.transport: transport for transport in (RedisStream, RedisList, RedisPubSub)
}

__all__ = [
    "TRANSPORTS",
    "Gap",
    "Lag",
    "Outgoing",
    "Publisher",
    "PullAdapter",
    "PullOptions",
    "RedisList",
    "RedisPubSub",
    "RedisStream",
]
