"""What the requests share: the adapters, the ledger and the threads that wait for it; opened once, on first use."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ..backoff import Outage
from ..config import load_web, load_webhooks
from ..ledger import Ledger, migrate
from ..normalize import resolve_provider
from ..push import OPEN, PushAdapter
from ..registration import register_adapter
from .group_commit import GroupCommit
from .limits import Limits

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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self.ledger = Ledger("")
        self.lines: dict[str, Line] = {}
        self.trusted_proxies: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self.outage = Outage("web: the ledger", logger, {})

    def open(self) -> None:
        """Reads the configuration, opens and migrates the ledger and registers the adapters; does nothing when done.

        Raises ``ConfigError`` or ``LedgerError`` where it could not serve.
        """
        with self._lock:
            if self._opened:
                return
            options, adapters = load_web(), load_webhooks()
            ledger = Ledger.from_environment()
            ledger.max_size = LEDGER_CONNECTIONS
            ledger.open()
            migrate(ledger)
            with ledger.transaction(doing="register adapters") as transaction:
                routes = {adapter.name: register_adapter(transaction.connection, adapter) for adapter in adapters}
            self.ledger = ledger
            self.executor = ThreadPoolExecutor(LEDGER_CONNECTIONS, "switchboard-web")
            self.limits = Limits(options.max_in_progress, options.read_timeout)
            self.trusted_proxies = [ipaddress.ip_network(proxy) for proxy in options.trusted_proxies]
            self.read_timeout = options.read_timeout
            for adapter in adapters:
                normalizer = resolve_provider(adapter.options.provider)
                into = GroupCommit(ledger, routes[adapter.name], normalizer, self.executor)
                self.lines[adapter.name] = Line(adapter, into)
                _say(adapter)
            self._opened = True

    def close(self) -> None:
        """Waits for what is being stored and closes the ledger; the next use opens it again."""
        with self._lock:
            if self._opened:
                self._opened = False
                self.executor.shutdown()
                self.ledger.close()
                self.lines = {}

    async def ready(self) -> None:
        """Opens it where that is not done: an application that it is mounted in may not run its lifespan."""
        if not self._opened:
            await asyncio.to_thread(self.open)

    async def call(self, function: Callable[[], T]) -> T:
        """Runs what waits for the ledger in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function)


def _say(adapter: PushAdapter) -> None:
    fields = {"adapter": adapter.name}
    if adapter.off:
        logger.warning("adapter %s is OFF: %s; it answers 503", adapter.name, adapter.off, extra=fields)
    elif adapter.trust_mode == "open":
        logger.warning("adapter %s is %s; whoever finds its address makes todos", adapter.name, OPEN, extra=fields)
