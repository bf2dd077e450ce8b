"""uvicorn as ``switchboard serve`` runs it."""

from __future__ import annotations

import asyncio
import logging
import resource
from datetime import timedelta
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

#: Connections at once, at most, however many files the process may open.
MAX_CONNECTIONS = 4000

#: Seconds a stopped server gives to the requests that it has.
STOP_SECONDS = 15


def server(app: ASGIApp, host: str, port: int, read_timeout: timedelta) -> uvicorn.Server:
    """A server that says nothing of itself, believes no proxy and waits for no slow sender."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * MAX_CONNECTIONS if allowed == resource.RLIM_INFINITY else min(allowed, 2 * MAX_CONNECTIONS)
    # asyncio takes as many connections as this in one step, and it is three steps until one that is over the limit is
    # closed: with the half that is open they fit into the files there are, and leave some for the rest.
    backlog = max(1, files // 16)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=_cutting(read_timeout.total_seconds(), files // 2),
            backlog=backlog,
            ws="none",
            log_config=None,
            server_header=False,
            # Which address a request is from is decided by trusted_proxies.
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )


def _cutting(seconds: float, max_connections: int) -> type[H11Protocol]:
    """The protocol, with an end to headers that do not come, and to ever more connections.

    uvicorn itself waits for headers for ever, and where no file is left every step of its loop fails. Of too many
    connections the one goes that has waited for a request longest; where none waits, the new one.
    """
    connections: dict[Cutting, None] = {}
    full = False

    class Cutting(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._arm()
            self._make_room()

        def on_response_complete(self) -> None:
            # Before the rest, which may begin with the next request.
            self._arm()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self, None)
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def _arm(self) -> None:
            # To the end: they stand in the order in which they began to wait.
            connections.pop(self, None)
            connections[self] = None
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self._cut)

        def _cut(self) -> None:
            if self._waits():
                self.transport.close()

        def _waits(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _make_room(self) -> None:
            nonlocal full
            if len(connections) <= max_connections:
                full = full and len(connections) > max_connections // 2
                return
            if not full:
                full = True
                logger.warning(
                    "%d connections, as many as there may be: for each new one the longest without a request is closed",
                    max_connections,
                )
            longest = next((one for one in connections if one._waits()), self)
            connections.pop(longest)
            longest.transport.abort()

    return Cutting
