"""Messages from outside become work that cannot be lost: store-then-ack ingestion for Dramatiq.

Its names are imported with their first use, so that a command which needs few of them starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dramatiq

    from .brokers import AdapterQueues, RedisBroker, StubBroker
    from .brokers.rabbitmq import RabbitmqBroker
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

#: Where the names above are, but for the errors.
_HOMES = {
    "AdapterQueues": ".brokers",
    "Delivery": ".model",
    "Event": ".model",
    "Ledger": ".ledger",
    "Outgoing": ".pull",
    "Publisher": ".pull",
    "PullAdapter": ".pull",
    # pika is an extra: only who asks for this broker needs it.
    "RabbitmqBroker": ".brokers.rabbitmq",
    "RedisBroker": ".brokers",
    "RedisList": ".pull",
    "RedisPubSub": ".pull",
    "RedisStream": ".pull",
    "Shape": ".model",
    "StubBroker": ".brokers",
    "Todo": ".claimed",
    "TodoRow": ".model",
    "todo": ".todo_actor",
    "transaction": ".ledger",
}


def __getattr__(name: str) -> Any:
    # Declared on the broker in force, which is there only once a team has set its own.
    if name == "create_todo":
        from .create_todo_actor import create_todo_actor

        return create_todo_actor()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, ".errors"), __name__), name)
    return value
