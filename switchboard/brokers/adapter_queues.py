"""The mixin that lets any Dramatiq broker answer for Switchboard's queues too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dramatiq
import dramatiq.broker

from ..errors import ConfigError, SwitchboardError
from ..ledger import Ledger, migrate, upsert_adapter
from ..middleware import Lifecycle, StoreThenAck
from ..model import Route
from ..pull import PullAdapter
from .adapter_consumer import AdapterConsumer, ingest_actor_name
from .gate import IngestGate

if TYPE_CHECKING:
    _Base = dramatiq.Broker
else:
    _Base = object

#: What the queue of an adapter is called: ``adapter.<name>``.
ADAPTER_PREFIX = "adapter."


def adapter_queue(name: str) -> str:
    """The Dramatiq queue of the adapter with that name."""
    return ADAPTER_PREFIX + name


class AdapterQueues(_Base):
    """Goes before a broker class: ``class Broker(switchboard.AdapterQueues, RedisBroker)``.

    It answers for the queues ``adapter.<name>``, each read by a pull adapter; all others are the broker's own,
    untouched. Consumers live on the broker: Dramatiq makes a consumer anew after an error, and what is held must
    survive that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before super().__init__(), which adds middleware, which asks for the declared queues.
        self.adapters: dict[str, PullAdapter] = {}
        self._routes: dict[str, Route] = {}
        self._ledger: Ledger | None = None
        self._adapter_consumers: dict[str, AdapterConsumer] = {}
        self._gate = IngestGate()
        self._adapter_listeners: list[Callable[[PullAdapter], None]] = []
        #: Whether Switchboard's own actors are on this broker.
        self.has_own_actors = False
        super().__init__(*args, **kwargs)
        lifecycle = Lifecycle(self)
        if self.middleware:
            self.add_middleware(lifecycle, before=type(self.middleware[0]))
        else:
            self.add_middleware(lifecycle)
        self.add_middleware(StoreThenAck(lambda: self.ledger))

    @property
    def ledger(self) -> Ledger:
        """The ledger at ``DATABASE_URL``; ``ConfigError`` where that is not set. Nothing connects before its use."""
        if self._ledger is None:
            self._ledger = Ledger.from_environment()
        return self._ledger

    @property
    def in_use(self) -> bool:
        """Whether this broker has anything that needs the ledger: an adapter, or a ``store_then_ack`` actor."""
        return bool(self.adapters) or any(actor.options.get("store_then_ack") for actor in self.actors.values())

    def add_adapter(self, adapter: PullAdapter) -> None:
        """Declares the adapter's queue, which the worker that runs ``switchboard.actors`` reads.

        ``ConfigError`` where its name is taken, or the worker has already started.
        """
        if self._routes:
            raise ConfigError(f"adapter {adapter.name!r} is added too late: the worker has started")
        if adapter.name in self.adapters:
            raise ConfigError(
                f"adapter {adapter.name!r} is there twice: in switchboard.toml and in code, or twice in one"
            )
        self.adapters[adapter.name] = adapter
        queue_name = adapter_queue(adapter.name)
        self.emit_before("declare_queue", queue_name)
        self.emit_after("declare_queue", queue_name)
        for listener in self._adapter_listeners:
            listener(adapter)

    def each_adapter(self, listener: Callable[[PullAdapter], None]) -> None:
        """Calls ``listener`` with each adapter that is there, and with each that is added later."""
        self._adapter_listeners.append(listener)
        for adapter in self.adapters.values():
            listener(adapter)

    def _adapter_of(self, queue_name: str) -> PullAdapter | None:
        if not queue_name.startswith(ADAPTER_PREFIX):
            return None
        return self.adapters.get(queue_name.removeprefix(ADAPTER_PREFIX))

    # dramatiq.Broker, for our queues

    def declare_queue(self, queue_name: str, *args: Any, **kwargs: Any) -> None:
        if self._adapter_of(queue_name) is None:
            super().declare_queue(queue_name, *args, **kwargs)

    def get_declared_queues(self) -> set[str]:
        # A set of our own: within Broker.__init__ it is a dict still.
        return set(super().get_declared_queues()) | {adapter_queue(name) for name in self.adapters}

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        if message.queue_name.startswith(ADAPTER_PREFIX):
            # A copy (a retry, say) would be acknowledged in place of the original (dramatiq#545).
            raise SwitchboardError(
                f"queue {message.queue_name!r} is read from its source: nothing can be enqueued on it; "
                f"use `switchboard publish` to put a message on the source"
            )
        return super().enqueue(message, delay=delay)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> dramatiq.Consumer:
        adapter = self._adapter_of(queue_name)
        if adapter is None:
            return super().consume(queue_name, prefetch, timeout)
        consumer = self._adapter_consumers.get(queue_name)
        if consumer is None or consumer.stopped:
            route = self._routes[adapter.name]
            consumer = AdapterConsumer(adapter, route, queue_name, self.ledger, self._gate, timeout / 1000)
            self._adapter_consumers[queue_name] = consumer
        return consumer

    def _register_adapters(self) -> None:
        """Upserts every adapter in the ledger, which decides its key prefix (SPEC-0002, Adapter Interface)."""
        with self.ledger.transaction(doing="register adapters") as transaction:
            for adapter in self.adapters.values():
                options = adapter.options
                row = upsert_adapter(
                    transaction.connection,
                    name=adapter.name,
                    family=adapter.family,
                    trust_mode=adapter.trust_mode,
                    queue=options.queue,
                    namespace=adapter.namespace,
                    config=adapter.describe(),
                )
                self._routes[adapter.name] = Route(
                    adapter=adapter.name,
                    queue=options.queue,
                    key_prefix=row.key_prefix,
                    provider=options.provider,
                    family=adapter.family,
                    trust_mode=adapter.trust_mode,
                    max_body=options.max_body,
                )

    # middleware.Lifecycle's Served

    def start_serving(self, worker_threads: int) -> None:
        """Checks that this is the right broker, opens and migrates the ledger and registers the adapters.

        Raises ``ConfigError`` or ``LedgerError`` where the worker could not do its work.
        """
        other = dramatiq.broker.global_broker
        if other is not self and (self.has_own_actors or getattr(other, "has_own_actors", False)):
            raise ConfigError(
                "this worker's broker is not the one that is set: a broker was set after switchboard.actors had "
                "taken another. Name the module that sets it first: `dramatiq myapp.tasks switchboard.actors`"
            )
        if not self.in_use:
            return
        for name in self.adapters:
            if ingest_actor_name(name) not in self.actors:
                raise ConfigError(
                    f"adapter {name!r} has nobody to store what it reads: add switchboard.actors to the worker's "
                    f"modules, `dramatiq myapp.tasks switchboard.actors`"
                )
        # One a worker thread, and one a consumer that looks after its adapter.
        self.ledger.max_size = worker_threads + len(self.adapters) + 1
        self.ledger.open()
        migrate(self.ledger)
        self._register_adapters()

    def stop_reading(self) -> None:
        """Ends all reading from sources; what is being stored goes on, and has to be quick about it."""
        for consumer in self._adapter_consumers.values():
            consumer.stop()
        if self._ledger is not None:
            self._ledger.stop()

    def end_serving(self) -> None:
        """Closes the ledger."""
        if self._ledger is not None:
            self._ledger.close()
