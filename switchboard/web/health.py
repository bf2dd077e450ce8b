"""``GET /livez`` and ``GET /readyz``: what an orchestrator asks of this process.

Who asks learns one word, and costs the ledger nothing: it is asked where nothing has been heard of it lately, once for
all who want to know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..errors import LedgerError, LedgerUnavailable, SwitchboardError
from ..redact import safe_text
from .away import is_away
from .service import Service

logger = logging.getLogger(__name__)

#: Seconds for which an answer of the ledger counts, and between two questions, at least.
INTERVAL = 5.0

#: Seconds that whoever asks waits for the ledger's answer.
PATIENCE = 3.0


async def livez(_http: Request) -> Response:
    """200 while the event loop turns: a restart helps where nothing comes back."""
    return PlainTextResponse("live")


def readyz(service: Service) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint. 200 where the ledger has answered within ``INTERVAL``, to anybody; else 503."""
    asking: asyncio.Task[None] | None = None
    asked_at = 0.0

    async def answer(_http: Request) -> Response:
        nonlocal asking, asked_at
        if not service.answered_within(INTERVAL):
            if asking is None or (asking.done() and time.monotonic() - asked_at >= INTERVAL):
                asking, asked_at = asyncio.create_task(_ask(service)), time.monotonic()
            if not asking.done():
                await asyncio.wait([asking], timeout=PATIENCE)
        ready = service.answered_within(INTERVAL)
        return PlainTextResponse("ready" if ready else "unavailable", 200 if ready else 503)

    return answer


async def _ask(service: Service) -> None:
    try:
        await service.ready()
    except LedgerUnavailable:
        # It has been noted, and said once.
        return
    except SwitchboardError as error:
        logger.error("web: %s", safe_text(str(error)))
        return
    try:
        await service.in_thread(service.ledger.probe)
    except LedgerUnavailable as error:
        if is_away(error):
            service.outage.failed(error)
    except LedgerError as error:
        logger.error("web: the ledger refuses a probe: %s", safe_text(str(error)))
    else:
        service.outage.over()
