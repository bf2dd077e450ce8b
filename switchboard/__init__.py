"""Messages from outside become work that cannot be lost: store-then-ack ingestion for Dramatiq."""

from typing import TYPE_CHECKING, Any

from .brokers import AdapterQueues, RedisBroker, StubBroker
from .errors import (
    AckFailed,
    BrokerUnavailable,
    ConfigError,
    Conflict,
    LedgerError,
    LedgerUnavailable,
    MessageInvalid,
    NotFound,
    PoisonMessage,
    PublishRejected,
    SignatureInvalid,
    SwitchboardError,
)
from .ledger import Ledger, transaction
from .model import Delivery, Event, Shape, Todo
from .pull import Outgoing, Publisher, PullAdapter, RedisList, RedisPubSub, RedisStream

if TYPE_CHECKING:
    from .brokers.rabbitmq import RabbitmqBroker

__all__ = [
    "AckFailed",
    "AdapterQueues",
    "BrokerUnavailable",
    "ConfigError",
    "Conflict",
    "Delivery",
    "Event",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "MessageInvalid",
    "NotFound",
    "Outgoing",
    "PoisonMessage",
    "PublishRejected",
    "Publisher",
    "PullAdapter",
    "RabbitmqBroker",
    "RedisBroker",
    "RedisList",
    "RedisPubSub",
    "RedisStream",
    "Shape",
    "SignatureInvalid",
    "StubBroker",
    "SwitchboardError",
    "Todo",
    "transaction",
]


def __getattr__(name: str) -> Any:
    # pika is an extra: only who asks for the RabbitMQ broker needs it.
    if name == "RabbitmqBroker":
        from .brokers.rabbitmq import RabbitmqBroker

        return RabbitmqBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
