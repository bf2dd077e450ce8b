"""uvicorn as ``switchboard serve`` runs it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds a stopped server gives to the requests that it has.
STOP_SECONDS = 15


def server(app: ASGIApp, host: str, port: int, read_timeout: timedelta) -> uvicorn.Server:
    """A server that says nothing of itself, believes no proxy and waits for no slow sender."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=_cutting(read_timeout.total_seconds()),
            ws="none",
            log_config=None,
            server_header=False,
            # Which address a request is from is decided by trusted_proxies.
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )


def _cutting(seconds: float) -> type[H11Protocol]:
    """The protocol, with an end to headers that do not come: uvicorn itself waits for them for ever."""

    class Cutting(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._arm()

        def on_response_complete(self) -> None:
            # Before the rest, which may begin with the next request.
            self._arm()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def _arm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self._cut)

        def _cut(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Cutting
