"""``POST /v1/queues/{queue}/todos``: an agent makes a todo with the credential of an endpoint that it was vended."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import CredentialInvalid, LedgerError, LedgerUnavailable, MessageInvalid
from ..ledger import EndpointRow, RawJson, authenticate_endpoint, create_todo
from ..model import TodoRow
from ..normalize.storable import NotJson, NumberText, read_json
from ..redact import safe_text
from .group_commit import STATEMENT_TIMEOUT
from .limits import come_again
from .sealed import sealed
from .service import Service

logger = logging.getLogger(__name__)

#: Bytes of a body, at most.
MAX_BODY = 1024**2

_SCHEME = b"bearer "

#: Text of one line: PostgreSQL takes no NUL, and people read these.
_Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=200)]


class NewTodo(BaseModel):
    """What a request for a todo says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: _Line
    #: Any JSON; numbers keep the form they were written in.
    payload: Any = None
    kind: _Line = ""
    #: Unique among the live todos that this endpoint made in this queue.
    idempotency_key: _Line | None = None
    assignee: _Line | None = None
    max_attempts: int = Field(default=5, ge=1, le=1000)


def todos(service: Service) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint. 201 once the todo is committed, 200 with the live one of the same key."""

    async def create(http: Request) -> Response:
        await service.ready()
        queue = http.path_params["queue"]
        if service.outage.wait_seconds:
            raise come_again("the ledger is away")
        was = sealed(http.scope)
        credential = _credential(was.headers)
        with service.limits.admitted() as admission:
            body = await admission.body(http.receive, dict(was.headers), MAX_BODY)
            try:
                todo, created = await service.call(lambda: _create(service, queue, credential, body))
            except CredentialInvalid:
                raise _unauthorized() from None
            except LedgerUnavailable as error:
                service.outage.failed(error)
                raise come_again("the ledger is away") from None
            except LedgerError as error:
                logger.error("todo for queue %s refused: %s", safe_text(queue, 200), safe_text(error))
                raise come_again("the ledger refuses it") from None
            service.outage.over()
        content = {"created": int(created), "id": todo.id, "queue": todo.queue, "state": todo.state}
        return JSONResponse(content, 201 if created else 200)

    return create


def _create(service: Service, queue: str, credential: str, body: bytes) -> tuple[TodoRow, bool]:
    """In the thread: who is it, may they, and what do they say; in this order, so that a stranger learns nothing."""
    with service.ledger.transaction(timeout=STATEMENT_TIMEOUT, doing="create todo") as transaction:
        endpoint = authenticate_endpoint(transaction.connection, credential)
        if not endpoint.may(queue, "create"):
            logger.warning(
                "endpoint %d of agent %s may not make todos in queue %s",
                endpoint.id,
                endpoint.agent,
                safe_text(queue, 200),
            )
            raise HTTPException(403, "this endpoint may not make todos in this queue")
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
        todo = NewTodo.model_validate_json(body)
        document = read_json(body.decode("utf-8"))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()]
        raise HTTPException(422, "; ".join(problems)) from None
    except (NotJson, UnicodeDecodeError):
        raise HTTPException(422, "body: expected JSON in UTF-8") from None
    except MessageInvalid as error:
        raise HTTPException(422, f"payload: {error}") from None
    payload = document.get("payload") if isinstance(document, dict) else None
    return todo, RawJson(_written(payload))


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
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1 or not found[0].isascii() or found[0][: len(_SCHEME)].lower() != _SCHEME:
        raise _unauthorized()
    return found[0][len(_SCHEME) :].strip().decode("ascii")


def _unauthorized() -> HTTPException:
    logger.warning("todo refused, 401: no endpoint in force has the credential, or there is none")
    return HTTPException(401, "no endpoint in force has this credential", {"WWW-Authenticate": "Bearer"})
