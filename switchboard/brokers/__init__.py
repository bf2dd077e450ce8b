"""Dramatiq brokers that answer for Switchboard's queues, and which of them is in force."""

from .adapter_consumer import ingest_actor_name
from .adapter_queues import AdapterQueues, adapter_queue, todo_queue
from .in_force import broker_in_force
from .ready import RedisBroker, StubBroker
from .todo_options import TodoOptions

__all__ = [
    "AdapterQueues",
    "RedisBroker",
    "StubBroker",
    "TodoOptions",
    "adapter_queue",
    "broker_in_force",
    "ingest_actor_name",
    "todo_queue",
]
