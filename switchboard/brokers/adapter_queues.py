"""The mixin that lets any Dramatiq broker answer for Switchboard's queues too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dramatiq
import dramatiq.broker

from ..errors import ConfigError, SwitchboardError
from ..ledger import Ledger, migrate
from ..middleware import Lifecycle, LogFormat, SentryContext, StoreThenAck, Traces
from ..model import Route
from ..process_name import process_name
from ..pull import PullAdapter
from ..registration import register_adapter
from ..telemetry.gauge_file import metrics_directory
from ..telemetry.pulse import Beat, Pulse
from .adapter_consumer import AdapterConsumer, ingest_actor_name
from .gate import IngestGate
from .sampler import Sampler
from .todo_consumer import TodoConsumer
from .todo_listener import TodoListener
from .todo_options import TodoOptions

if TYPE_CHECKING:
    _Base = dramatiq.Broker
else:
    _Base = object

#: What the queue of an adapter is called: ``adapter.<name>``.
ADAPTER_PREFIX = "adapter."


#: What the queue of todos is called: ``todo.<queue>``.
TODO_PREFIX = "todo."


def todo_queue(name: str) -> str:
    """The Dramatiq queue that claims the todos of that queue."""
    return TODO_PREFIX + name


def adapter_queue(name: str) -> str:
    """The Dramatiq queue of the adapter with that name."""
    return ADAPTER_PREFIX + name


class AdapterQueues(_Base):
    """Goes before a broker class: ``class Broker(switchboard.AdapterQueues, RedisBroker)``.

    It answers for the queues ``adapter.<name>``, each read by a pull adapter, and ``todo.<queue>``, each claimed from
    the ledger; all others are the broker's own, untouched. Consumers live on the broker: Dramatiq makes a consumer
    anew after an error, and what is held must survive that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before super().__init__(), which adds middleware, which asks for the declared queues.
        self.adapters: dict[str, PullAdapter] = {}
        self._routes: dict[str, Route] = {}
        self._ledger: Ledger | None = None
        self._adapter_consumers: dict[str, AdapterConsumer] = {}
        self._todo_queues: dict[str, TodoOptions] = {}
        self._todo_consumers: dict[str, TodoConsumer] = {}
        self._listener: TodoListener | None = None
        self._sampler: Sampler | None = None
        self._pulse: Pulse | None = None
        self._gate = IngestGate()
        self._adapter_listeners: list[Callable[[PullAdapter], None]] = []
        #: Whether Switchboard's own actors are on this broker.
        self.has_own_actors = False
        super().__init__(*args, **kwargs)
        # Before all others, Sentry's own included: what that forks has our tags, and ends before they do.
        for middleware in (SentryContext(), LogFormat(), Lifecycle(self)):
            self.add_middleware(middleware, before=type(self.middleware[0]) if self.middleware else None)
        self.add_middleware(Traces())
        self.add_middleware(StoreThenAck(lambda: self.ledger))

    @property
    def ledger(self) -> Ledger:
        """The ledger at ``DATABASE_URL``; ``ConfigError`` where that is not set. Nothing connects before its use."""
        if self._ledger is None:
            self._ledger = Ledger.from_environment()
        return self._ledger

    @property
    def in_use(self) -> bool:
        """Whether anything of this broker's needs the ledger: an adapter, a todo queue, upkeep, a storing actor."""
        return bool(self.adapters or self._todo_queues or self.has_own_actors) or any(
            actor.options.get("store_then_ack") for actor in self.actors.values()
        )

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

    @contextmanager
    def todo_queue_of(self, queue: str, options: TodoOptions) -> Iterator[None]:
        """Declares the queue ``todo.<queue>``, which claims from the ledger, for the one actor declared inside.

        ``ConfigError`` where it has one already; the queue stays free where the actor is refused.
        """
        if queue in self._todo_queues:
            raise ConfigError(f"todo queue {queue!r} has a handler already")
        self._todo_queues[queue] = options
        try:
            yield
        except BaseException:
            del self._todo_queues[queue]
            raise
        self.emit_before("declare_queue", todo_queue(queue))
        self.emit_after("declare_queue", todo_queue(queue))

    def _nudge(self, queue: str | None) -> None:
        for consumer in list(self._todo_consumers.values()):
            if queue is None or consumer.queue == queue:
                consumer.nudge()

    def _adapter_of(self, queue_name: str) -> PullAdapter | None:
        if not queue_name.startswith(ADAPTER_PREFIX):
            return None
        return self.adapters.get(queue_name.removeprefix(ADAPTER_PREFIX))

    # dramatiq.Broker, for our queues

    def declare_queue(self, queue_name: str, *args: Any, **kwargs: Any) -> None:
        if not self._is_ours(queue_name):
            super().declare_queue(queue_name, *args, **kwargs)

    def get_declared_queues(self) -> set[str]:
        # A set of our own: within Broker.__init__ it is a dict still.
        ours = {adapter_queue(name) for name in self.adapters} | {todo_queue(name) for name in self._todo_queues}
        return set(super().get_declared_queues()) | ours

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        if message.queue_name.startswith(TODO_PREFIX):
            raise SwitchboardError(
                f"queue {message.queue_name!r} is claimed from the ledger: nothing can be enqueued on it; make a todo, "
                f"`switchboard.create_todo.send(queue={message.queue_name.removeprefix(TODO_PREFIX)!r}, …)`"
            )
        if message.queue_name.startswith(ADAPTER_PREFIX):
            # A copy (a retry, say) would be acknowledged in place of the original (dramatiq#545).
            raise SwitchboardError(
                f"queue {message.queue_name!r} is read from its source: nothing can be enqueued on it; "
                f"use `switchboard publish` to put a message on the source"
            )
        return super().enqueue(message, delay=delay)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> dramatiq.Consumer:
        if queue_name.startswith(TODO_PREFIX) and self._is_ours(queue_name):
            return self._consume_todos(queue_name, prefetch, timeout)
        adapter = self._adapter_of(queue_name)
        if adapter is None:
            return super().consume(queue_name, prefetch, timeout)
        consumer = self._adapter_consumers.get(queue_name)
        if consumer is None or consumer.stopped:
            route = self._routes[adapter.name]
            consumer = AdapterConsumer(adapter, route, queue_name, self.ledger, self._gate, timeout / 1000)
            self._adapter_consumers[queue_name] = consumer
        return consumer

    def _is_ours(self, queue_name: str) -> bool:
        if queue_name.startswith(TODO_PREFIX):
            return queue_name.removeprefix(TODO_PREFIX) in self._todo_queues
        return self._adapter_of(queue_name) is not None

    def _consume_todos(self, queue_name: str, prefetch: int, timeout: int) -> TodoConsumer:
        consumer = self._todo_consumers.get(queue_name)
        if consumer is None or consumer.stopped:
            queue = queue_name.removeprefix(TODO_PREFIX)
            consumer = TodoConsumer(
                queue,
                queue_name,
                next(actor for actor in self.actors.values() if actor.queue_name == queue_name),
                self._todo_queues[queue],
                self.ledger,
                worker=process_name(),
                prefetch=prefetch,
                timeout_seconds=timeout / 1000,
            )
            self._todo_consumers[queue_name] = consumer
        return consumer

    def _register_adapters(self) -> None:
        """Upserts every adapter in the ledger, which decides its key prefix (SPEC-0002, Adapter Interface)."""
        with self.ledger.transaction(doing="register adapters") as transaction:
            for adapter in self.adapters.values():
                self._routes[adapter.name] = register_adapter(transaction.connection, adapter)

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
        # One a worker thread, one a consumer that looks after its adapter, and one for metrics.
        self.ledger.max_size = worker_threads + len(self.adapters) + len(self._todo_queues) + 2
        self.ledger.open()
        migrate(self.ledger)
        self._register_adapters()
        if self._todo_queues and self.ledger.notify:
            self._listener = TodoListener(self.ledger, self._nudge)
            self._listener.start()
        directory = metrics_directory()
        if directory is not None:
            self._sampler = Sampler(directory, self.ledger, self.adapters.values(), self._todo_queues)
            self._sampler.start()
        self._pulse = Pulse(lambda: self.ledger.answered_at, self._beats)
        self._pulse.start()

    def _beats(self) -> list[Beat]:
        """What each consumer that reads now last did."""
        beats = []
        for consumer in list(self._adapter_consumers.values()):
            if not consumer.stopped:
                consumer.beat.storing_since = consumer.storing_since
                beats.append(consumer.beat)
        return beats + [consumer.beat for consumer in list(self._todo_consumers.values()) if not consumer.stopped]

    def stop_reading(self) -> None:
        """Ends all reading from sources; what is being stored goes on, and has to be quick about it."""
        if self._pulse is not None:
            self._pulse.stopping()
        if self._sampler is not None:
            self._sampler.stopping()
        for adapter_consumer in self._adapter_consumers.values():
            adapter_consumer.stop()
        for todo_consumer in self._todo_consumers.values():
            todo_consumer.stop()
        if self._ledger is not None:
            self._ledger.stop()

    def end_serving(self) -> None:
        """Ends listening and closes the ledger."""
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.stop()
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        if self._ledger is not None:
            self._ledger.close()
