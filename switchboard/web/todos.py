"""``POST /v1/queues/{queue}/todos``: an agent makes a todo with the credential of an endpoint that it was vended."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import CredentialInvalid, LedgerError, LedgerUnavailable, MessageInvalid
from ..ledger import EndpointRow, authenticate_endpoint, create_todo
from ..ledger.credentials import digest_of, refusal
from ..model import RawJson, TodoRow
from ..normalize.storable import NotJson, NumberText, read_json
from ..redact import safe_text
from .away import is_away
from .limits import STATEMENT_TIMEOUT, come_again
from .sealed import sealed, source_ip
from .service import Service

logger = logging.getLogger(__name__)

#: Bytes of a body, at most.
MAX_BODY = 1024**2

_SCHEME = b"bearer "

#: Not printable to Python, and in names that people write: they join the parts of a letter or an emoji.
_JOINERS = "\u200c\u200d"


def _printable(text: str) -> str:
    """Text of one line that shows all it holds; a space of any width may be in it, and not be all of it."""
    shown = (one.isprintable() or one in _JOINERS or unicodedata.category(one) == "Zs" for one in text)
    if not text.strip() or not all(shown):
        raise ValueError("expected printable text of one line")
    return text


_OneLine = Annotated[str, Field(max_length=200), AfterValidator(_printable)]


class NewTodo(BaseModel):
    """What a request for a todo says, but for its payload."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: _OneLine
    kind: _OneLine = ""
    #: Unique among the live todos that this endpoint made in this queue.
    idempotency_key: _OneLine | None = None
    assignee: _OneLine | None = None
    max_attempts: int = Field(default=5, ge=1, le=1000)


def todos(service: Service) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint. 201 once the todo is committed, 200 with the live one of the same key."""

    async def create(http: Request) -> Response:
        await service.ready()
        queue = http.path_params["queue"]
        if service.outage.wait_seconds:
            raise come_again("the ledger is away")
        was = sealed(http.scope)
        ip = source_ip(http.scope, was.headers, service.trusted_proxies)
        try:
            credential = _credential(was.headers)
            async with service.limits.body(http.receive, dict(was.headers), MAX_BODY, ip) as body:
                todo, created = await service.in_thread(lambda: _create(service, queue, credential, body))
        except CredentialInvalid as error:
            logger.warning("todo refused, 401, from %s: %s", ip, error)
            raise HTTPException(401, str(error), {"WWW-Authenticate": "Bearer"}) from None
        except _NotAllowed as error:
            logger.warning("todo refused, 403, from %s: %s", ip, error)
            raise HTTPException(403, "this endpoint may not make todos in this queue") from None
        except LedgerUnavailable as error:
            if is_away(error):
                service.outage.failed(error)
                raise come_again("the ledger is away") from None
            logger.warning("todo refused, 503, from %s: %s", ip, safe_text(error))
            raise come_again("the ledger cannot store it now") from None
        except LedgerError as error:
            # It answered, and it is these values that it cannot hold: the same would be refused again.
            logger.warning("todo refused, 422, from %s: %s", ip, safe_text(error))
            raise HTTPException(422, "the ledger cannot hold these values") from None
        service.outage.over()
        content = {"created": int(created), "id": todo.id, "queue": todo.queue, "state": todo.state}
        return JSONResponse(content, 201 if created else 200)

    return create


class _NotAllowed(Exception):
    """Which endpoint asked for which queue, for the log."""


def _create(service: Service, queue: str, credential: str, body: bytes) -> tuple[TodoRow, bool]:
    """In the thread: who is it, may they, and what do they say; in this order, so that a stranger learns nothing."""
    with service.ledger.transaction(timeout=STATEMENT_TIMEOUT, doing="create todo") as transaction:
        endpoint = authenticate_endpoint(transaction.connection, credential)
        if not endpoint.may(queue, "create"):
            # As repr: a queue's name is the sender's, line ends and all.
            asked = safe_text(repr(queue), 200)
            raise _NotAllowed(f"endpoint {endpoint.id} of agent {endpoint.agent} may not make todos in queue {asked}")
        todo, payload = _read(body)
        return create_todo(
            transaction.connection,
            queue=queue,
            title=todo.title,
            payload=payload,
            source=f"endpoint:{endpoint.id}",
            kind=todo.kind,
            idempotency_key=_own_key(endpoint, todo.idempotency_key),
            assignee=todo.assignee,
            max_attempts=todo.max_attempts,
        )


def _own_key(endpoint: EndpointRow, key: str | None) -> str | None:
    # Its own namespace: an agent must not be able to take the key of a delivery that is still to come.
    return None if key is None else f"endpoint:{endpoint.id}:{key}"


def _read(body: bytes) -> tuple[NewTodo, RawJson]:
    try:
        document = read_json(body.decode("utf-8"))
    except (NotJson, UnicodeDecodeError):
        raise HTTPException(422, "body: expected JSON in UTF-8") from None
    except MessageInvalid as error:
        raise HTTPException(422, f"payload: {error}") from None
    if not isinstance(document, dict):
        raise HTTPException(422, "body: expected a JSON object")
    payload = document.pop("payload", None)
    try:
        todo = NewTodo.model_validate({name: _number(value) for name, value in document.items()})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()]
        raise HTTPException(422, "; ".join(problems)) from None
    return todo, RawJson(_written(payload))


def _number(value: object) -> object:
    """A number as one, so that it is not taken for text."""
    if not isinstance(value, NumberText):
        return value
    return int(value) if len(value) < 20 and value.lstrip("-").isdigit() else float(value)


def _written(value: object) -> str:
    """The value as JSON, its numbers as they came; ``read_json`` has bounded how deep it goes."""
    if isinstance(value, NumberText):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _credential(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The one credential that is shown; ``CredentialInvalid`` where there is none, or what could not be one."""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1 or not found[0].isascii() or found[0][: len(_SCHEME)].lower() != _SCHEME:
        raise refusal("endpoint")
    credential = found[0][len(_SCHEME) :].strip().decode("ascii")
    # Only for its form, before the body is read.
    digest_of("endpoint", credential)
    return credential
