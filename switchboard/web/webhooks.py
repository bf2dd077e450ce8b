"""``POST /webhooks/{adapter}``: a delivery is verified and stored; the answer is its acknowledgement."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..errors import Conflict, LedgerError, LedgerUnavailable, NotFound, SignatureInvalid
from ..push import PushAdapter, Request
from ..redact import safe_text
from .limits import come_again
from .sealed import sealed, source_ip
from .service import Service

logger = logging.getLogger(__name__)

#: Bytes from which on a body is verified in a thread of its own.
LONG_BODY = 256 * 1024


def webhooks(service: Service) -> Callable[[HttpRequest], Awaitable[Response]]:
    """The endpoint. 202 once the todo is committed, with ``{"created": 1}``, or 0 for a redelivery."""

    async def receive(http: HttpRequest) -> Response:
        await service.ready()
        name = http.path_params["adapter"]
        line = service.lines.get(name)
        if line is None:
            logger.warning("webhook refused: no adapter %s", safe_text(repr(name), 100))
            raise HTTPException(404, "no such adapter")
        adapter = line.adapter
        if adapter.off:
            raise _refused(adapter, come_again("the adapter is off"), f"the adapter is off, {adapter.off}")
        if service.outage.wait_seconds:
            raise come_again("the ledger is away")
        was = sealed(http.scope)
        with service.limits.admitted() as admission:
            body = await admission.body(http.receive, dict(was.headers), adapter.options.max_body)
            ip = source_ip(http.scope, was.headers, service.trusted_proxies)
            try:
                request = Request(body, was.headers, was.query, ip, time.time())
                # A long body takes long to sign and to read: the others do not wait for it.
                verify = functools.partial(adapter.verify, request)
                delivery = verify() if len(body) < LONG_BODY else await asyncio.to_thread(verify)
            except SignatureInvalid as error:
                status = 401 if adapter.trust_mode == "signed" else 403
                what = "the signature does not verify" if status == 401 else "the token does not verify"
                raise _refused(adapter, HTTPException(status, what), str(error), ip) from None
            answer = adapter.answer(delivery)
            if answer is not None:
                return PlainTextResponse(answer)
            try:
                kept = await line.into.store(delivery)
            except (Conflict, NotFound):
                raise _refused(adapter, come_again("the adapter is disabled"), "the adapter is disabled", ip) from None
            except LedgerUnavailable as error:
                service.outage.failed(error)
                raise come_again("the ledger is away") from None
            except LedgerError as error:
                raise _refused(adapter, come_again("the ledger refuses it"), str(error), ip) from None
            service.outage.over()
        content: dict[str, object] = {"created": int(kept == "created")}
        return JSONResponse(content | ({"dead_letter": True} if kept == "dead letter" else {}), 202)

    return receive


def _refused(adapter: PushAdapter, answer: HTTPException, why: str, source_ip: str | None = None) -> HTTPException:
    logger.warning(
        "webhook to adapter %s refused, %d: %s",
        adapter.name,
        answer.status_code,
        safe_text(why),
        extra={"adapter": adapter.name, "source_ip": source_ip},
    )
    return answer
