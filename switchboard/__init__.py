"""Messages from outside become work that cannot be lost: store-then-ack ingestion for Dramatiq."""

from typing import TYPE_CHECKING, Any

from .brokers import AdapterQueues, RedisBroker, StubBroker
from .claimed import Todo
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
from .model import Delivery, Event, Shape, TodoRow
from .pull import Outgoing, Publisher, PullAdapter, RedisList, RedisPubSub, RedisStream
from .todo_actor import todo

if TYPE_CHECKING:
    import dramatiq

    from .brokers.rabbitmq import RabbitmqBroker

    create_todo: dramatiq.Actor[Any, Any]

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
    "TodoRow",
    "create_todo",
    "todo",
    "transaction",
]


def __getattr__(name: str) -> Any:
    # pika is an extra: only who asks for the RabbitMQ broker needs it.
    if name == "RabbitmqBroker":
        from .brokers.rabbitmq import RabbitmqBroker

        return RabbitmqBroker
    # Declared on the broker in force, which is there only once a team has set its own.
    if name == "create_todo":
        from .create_todo_actor import create_todo_actor

        return create_todo_actor()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
