"""``POST /webhooks/{adapter}``: a delivery is verified and stored; the answer is its acknowledgement."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..errors import Conflict, LedgerError, LedgerUnavailable, MessageInvalid, NotFound, SignatureInvalid
from ..model import Delivery
from ..push import PushAdapter, Request
from ..redact import safe_text
from .away import is_away
from .limits import come_again
from .sealed import sealed, source_ip
from .service import Service

logger = logging.getLogger(__name__)


def webhooks(service: Service) -> Callable[[HttpRequest], Awaitable[Response]]:
    """The endpoint. 202 once the todo is committed, with ``{"created": 1}``, or 0 for a redelivery."""

    async def receive(http: HttpRequest) -> Response:
        await service.ready()
        was = sealed(http.scope)
        ip = source_ip(http.scope, was.headers, service.trusted_proxies)
        name = http.path_params["adapter"]
        webhook = service.webhooks.get(name)
        if webhook is None:
            logger.warning("webhook refused, 404, from %s: no adapter %s", ip, safe_text(repr(name), 100))
            raise HTTPException(404, "no such adapter")
        adapter = webhook.adapter
        if adapter.off:
            _refuse(adapter, come_again("the adapter is off"), f"the adapter is off, {adapter.off}", ip)
        if service.outage.wait_seconds:
            raise come_again("the ledger is away")
        request = Request(b"", was.headers, was.query, ip, time.time())
        try:
            # Before its body: a stranger is not to keep anybody waiting.
            adapter.check_head(request)
            async with service.limits.body(http.receive, dict(was.headers), adapter.options.max_body, ip) as body:
                request = replace(request, body=body, received_at=time.time())
                delivery, answer = await service.judge(functools.partial(_judge, adapter, request), len(body))
                if answer is not None:
                    return PlainTextResponse(answer)
                kept = await webhook.group_commit.store(delivery)
        except SignatureInvalid as error:
            status = 401 if adapter.trust_mode == "signed" else 403
            what = "the signature does not verify" if status == 401 else "the token does not verify"
            _refuse(adapter, HTTPException(status, what), str(error), ip)
        except MessageInvalid as error:
            _refuse(adapter, HTTPException(400, str(error)), str(error), ip)
        except (Conflict, NotFound):
            _refuse(adapter, come_again("the adapter is disabled"), "the adapter is disabled", ip)
        except LedgerUnavailable as error:
            if is_away(error):
                raise come_again("the ledger is away") from None
            _refuse(adapter, come_again("the ledger cannot store it now"), str(error), ip)
        except LedgerError as error:
            _refuse(adapter, come_again("the ledger refuses it"), str(error), ip)
        content: dict[str, object] = {"created": int(kept == "created")}
        return JSONResponse(content | ({"dead_letter": True} if kept == "dead letter" else {}), 202)

    return receive


def _judge(adapter: PushAdapter, request: Request) -> tuple[Delivery, str | None]:
    delivery = adapter.verify(request)
    return delivery, adapter.answer(delivery)


def _refuse(adapter: PushAdapter, answer: HTTPException, why: str, source_ip: str | None) -> NoReturn:
    """Logs who is refused, and why, and raises the answer."""
    logger.warning(
        "webhook to adapter %s refused, %d, from %s: %s",
        adapter.name,
        answer.status_code,
        source_ip,
        safe_text(why),
        extra={"adapter": adapter.name, "source_ip": source_ip},
    )
    raise answer from None
