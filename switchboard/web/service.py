"""What the requests share: the adapters, the ledger and the threads that wait for it; opened once, on first use."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from ..backoff import Outage
from ..config import load_web, load_webhooks
from ..errors import LedgerUnavailable
from ..ledger import Ledger, migrate
from ..model import Delivery, Route, Shape
from ..normalize import Normalizer, resolve_provider
from ..push import OPEN, PushAdapter
from ..registration import register_adapter
from ..telemetry.metrics import expose
from .group_commit import GroupCommit
from .limits import LONG_BODY, Limits
from .sealed import Network

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Connections to PostgreSQL, at most, and threads that wait for them: a flood takes no more from the workers.
LEDGER_CONNECTIONS = 4

#: Seconds the request that opens it waits for that; those that come meanwhile, or within the pause after a failure,
#: are told to come again at once.
OPENING_SECONDS, OPENING_PAUSE = 8.0, 5.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook adapter, and the way of its deliveries into the ledger."""

    adapter: PushAdapter
    group_commit: GroupCommit


class Service:
    """Opened and closed by any thread; the rest is used by the thread of the event loop."""

    # Set by open().
    ledger: Ledger
    limits: Limits
    read_timeout: timedelta
    trusted_proxies: list[Network]
    webhooks: dict[str, Webhook]
    _executor: ThreadPoolExecutor
    _judges: ThreadPoolExecutor

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Held while somebody opens it for a request, in whichever loop that is.
        self._opening = threading.Lock()
        self._not_before = 0.0
        self._opened = False
        #: Held while a long body is parsed.
        self._long = threading.Lock()
        self.outage = Outage("web: the ledger", logger, {})

    def open(self) -> None:
        """Reads the configuration, opens and migrates the ledger and registers the adapters; does nothing when done.

        Raises ``ConfigError`` or ``LedgerError`` where it could not serve.
        """
        with self._lock:
            if self._opened:
                return
            options, adapters = load_web(), load_webhooks()
            self.ledger = Ledger.from_environment()
            self.ledger.max_size = LEDGER_CONNECTIONS
            try:
                routes = self._register(adapters)
            except BaseException:
                self.ledger.close()
                raise
            self.limits = Limits(options.max_in_progress, options.read_timeout)
            self.read_timeout = options.read_timeout
            self.trusted_proxies = [ipaddress.ip_network(proxy) for proxy in options.trusted_proxies]
            self._executor = ThreadPoolExecutor(LEDGER_CONNECTIONS, "switchboard-web")
            self._judges = ThreadPoolExecutor(1, "switchboard-web-judge")
            self.webhooks = {adapter.name: self._webhook(adapter, routes[adapter.name]) for adapter in adapters}
            self._opened = True

    def _register(self, adapters: Sequence[PushAdapter]) -> dict[str, Route]:
        self.ledger.open()
        migrate(self.ledger)
        with self.ledger.transaction(doing="register adapters") as transaction:
            return {adapter.name: register_adapter(transaction.connection, adapter) for adapter in adapters}

    def _webhook(self, adapter: PushAdapter, route: Route) -> Webhook:
        fields = {"adapter": adapter.name}
        if adapter.off:
            logger.warning("adapter %s is OFF: %s; it answers 503", adapter.name, adapter.off, extra=fields)
        elif adapter.trust_mode == "open":
            logger.warning("adapter %s is %s; whoever finds its address makes todos", adapter.name, OPEN, extra=fields)
        expose(adapter=adapter.name)
        normalizer = self._one_long_at_a_time(resolve_provider(route.provider))
        return Webhook(adapter, GroupCommit(self.ledger, route, normalizer, self._executor, self.outage))

    def _one_long_at_a_time(self, normalizer: Normalizer) -> Normalizer:
        def normalize(delivery: Delivery) -> Shape:
            if len(delivery.body) < LONG_BODY:
                return normalizer(delivery)
            with self._long:
                return normalizer(delivery)

        return normalize

    def close(self) -> None:
        """Waits a moment for what is being stored and closes the ledger; the next use opens it again."""
        with self._lock:
            if self._opened:
                self._opened = False
                self.ledger.stop()
                self._executor.shutdown()
                self._judges.shutdown()
                self.ledger.close()

    async def ready(self) -> None:
        """Opens it where that is not done: an application that it is mounted in may not run its lifespan.

        Raises as ``open`` does, and ``LedgerUnavailable`` where it is not open soon, or another request opens it, or
        failed to a moment ago.
        """
        if self._opened:
            return
        if time.monotonic() < self._not_before or not self._opening.acquire(blocking=False):
            raise LedgerUnavailable("it is not open yet")
        opened: Future[None] = Future()
        # A thread of its own: those of the loop are the team's, and this may take long.
        threading.Thread(target=self._open_for, args=(opened,), name="switchboard-web-open", daemon=True).start()
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(opened)), OPENING_SECONDS)
        except TimeoutError:
            raise LedgerUnavailable("it takes long to open") from None

    def _open_for(self, opened: Future[None]) -> None:
        try:
            self.open()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
            self._not_before = time.monotonic() + OPENING_PAUSE
            if isinstance(error, LedgerUnavailable):
                self.outage.failed(error)
            self._opening.release()
            opened.set_exception(error)
        else:
            self.outage.over()
            self._opening.release()
            opened.set_result(None)

    def answered_within(self, seconds: float) -> bool:
        """Whether it is open, and the ledger has answered anything of this process within that time."""
        answered_at = self.ledger.answered_at if self._opened else None
        return answered_at is not None and time.monotonic() - answered_at < seconds

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Runs what waits for the ledger in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def judge(self, function: Callable[[], T], size: int) -> T:
        """Verifies a body of that many bytes; a long one in a thread, so that the others do not wait for it."""
        if size < LONG_BODY:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._judges, self._judge_long, function)

    def _judge_long(self, function: Callable[[], T]) -> T:
        with self._long:
            return function()
