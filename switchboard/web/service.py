"""What the requests share: the adapters, the ledger and the threads that wait for it; opened once, on first use."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from ..backoff import Outage
from ..config import load_web, load_webhooks
from ..errors import LedgerUnavailable
from ..ledger import Ledger, migrate
from ..model import Route
from ..normalize import resolve_provider
from ..push import OPEN, PushAdapter
from ..registration import register_adapter
from .group_commit import GroupCommit
from .limits import Limits
from .sealed import Network

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Connections to PostgreSQL, at most, and threads that wait for them: a flood takes no more from the workers.
LEDGER_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One webhook adapter, and the way of its deliveries into the ledger."""

    adapter: PushAdapter
    into: GroupCommit


class Service:
    """Opened and closed by any thread; the rest is used by the thread of the event loop."""

    # Set by open().
    ledger: Ledger
    limits: Limits
    read_timeout: timedelta
    trusted_proxies: list[Network]
    lines: dict[str, Line]
    _executor: ThreadPoolExecutor

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening = asyncio.Lock()
        self._opened = False
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
            self.lines = {adapter.name: self._line(adapter, routes[adapter.name]) for adapter in adapters}
            self._opened = True

    def _register(self, adapters: Sequence[PushAdapter]) -> dict[str, Route]:
        self.ledger.open()
        migrate(self.ledger)
        with self.ledger.transaction(doing="register adapters") as transaction:
            return {adapter.name: register_adapter(transaction.connection, adapter) for adapter in adapters}

    def _line(self, adapter: PushAdapter, route: Route) -> Line:
        fields = {"adapter": adapter.name}
        if adapter.off:
            logger.warning("adapter %s is OFF: %s; it answers 503", adapter.name, adapter.off, extra=fields)
        elif adapter.trust_mode == "open":
            logger.warning("adapter %s is %s; whoever finds its address makes todos", adapter.name, OPEN, extra=fields)
        return Line(adapter, GroupCommit(self.ledger, route, resolve_provider(route.provider), self._executor))

    def close(self) -> None:
        """Waits a moment for what is being stored and closes the ledger; the next use opens it again."""
        with self._lock:
            if self._opened:
                self._opened = False
                self.ledger.stop()
                self._executor.shutdown()
                self.ledger.close()

    async def ready(self) -> None:
        """Opens it where that is not done: an application that it is mounted in may not run its lifespan.

        Raises as ``open`` does; soon after the ledger was found to be away, at once.
        """
        if self._opened:
            return
        async with self._opening:
            if self.outage.wait_seconds:
                raise LedgerUnavailable("the ledger is away")
            try:
                await asyncio.to_thread(self.open)
            except LedgerUnavailable as error:
                self.outage.failed(error)
                raise
            self.outage.over()

    def answered_within(self, seconds: float) -> bool:
        """Whether it is open, and the ledger has answered anything of this process within that time."""
        answered_at = self.ledger.answered_at if self._opened else None
        return answered_at is not None and time.monotonic() - answered_at < seconds

    async def call(self, function: Callable[[], T]) -> T:
        """Runs what waits for the ledger in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)
