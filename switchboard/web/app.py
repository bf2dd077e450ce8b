"""The ASGI application: its routes, its lifespan, and how it says no."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import LedgerUnavailable, SwitchboardError
from ..redact import safe_text
from .health import livez, readyz
from .limits import Gone, come_again
from .sealed import Seal
from .service import Service
from .todos import todos
from .webhooks import webhooks

logger = logging.getLogger(__name__)


def create_app(service: Service | None = None) -> Starlette:
    """The application over that service, or one of its own; nothing is read or opened before it starts.

    It can be mounted in another application: where that runs no lifespan but its own, the first request opens it.
    """
    service = service or Service()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(service.open)
        try:
            yield
        finally:
            service.close()

    app = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz(service)),
            Route("/webhooks/{adapter}", webhooks(service), methods=["POST"]),
            Route("/v1/queues/{queue:path}/todos", todos(service), methods=["POST"]),
        ],
        lifespan=lifespan,
        middleware=[Middleware(Seal)],
        exception_handlers={HTTPException: _say_no, Gone: _answer_nobody, SwitchboardError: _cannot_serve},
    )
    # Behind a proxy that speaks TLS it would redirect to http://, and a token would follow in plain text.
    app.router.redirect_slashes = False
    return app


async def _say_no(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _cannot_serve(request: Request, error: Exception) -> Response:
    # Mounted, it is opened by a request: what would end `switchboard serve` with this line must not end its host.
    if not isinstance(error, LedgerUnavailable):
        logger.error("web: %s", safe_text(str(error)))
    return await _say_no(request, come_again("it cannot serve yet"))


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    # Nobody reads it; the server wants an answer all the same.
    return Response(status_code=400)
