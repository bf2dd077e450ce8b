"""An entry of a stream and a delivery, one made from the other: pure functions."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from ..errors import PublishRejected
from ..model import Delivery
from ..telemetry.tracing import trace_headers
from .base import Outgoing
from .redis_client import as_text

#: An entry's fields as they were sent: name, value, name, value …
Fields = Sequence[bytes]

#: Bytes of UTF-8 of a producer's own key that is kept as it is: PostgreSQL's indexes hold 2,704, which it shares with
#: the names of the queue and the stream.
LONGEST_KEY = 500

_CONTENT_TYPE = ("content-type", "content_type")


def deliver(entry_id: str, fields: Fields, tries: int, identity: str, *, body: str, key: str) -> Delivery:
    """The delivery of an entry. ``body`` names the field that holds it, or is empty: then the fields are the body.

    ``key`` names the field that holds a producer's own key, which stands for the entry's id then; one longer than
    ``LONGEST_KEY`` by its hash.
    """
    field = body.encode()
    if field and not key and len(fields) == 2 and fields[0] == field:
        # Nothing but a body, as most producers send it.
        return Delivery(fields[1], entry_id, identity, tries=tries, handle=entry_id)
    pairs = list(_pairs(fields))
    native_id = entry_id
    if key:
        native_id = next((_own_id(value) for name, value in pairs if name == key.encode()), entry_id)
    if not body:
        # The fields stay the body, as they are; what says which trace it is of is read as a header as well.
        traced = b"traceparent" in fields and trace_headers({_text(name): _text(value) for name, value in pairs})
        return Delivery(
            fields_as_json(fields), native_id, identity, traced or {}, "application/json", tries=tries, handle=entry_id
        )
    bodies = [value for name, value in pairs if name == field]
    headers = {_text(name): _text(value) for name, value in pairs if name != field}
    content_type = next((value for name, value in headers.items() if name.lower() in _CONTENT_TYPE), "")
    problem = None
    if len(bodies) != 1:
        problem = f"the entry has {len(bodies) or 'no'} field{'s' * (len(bodies) > 1)} {body!r}"
    return Delivery(
        bodies[0] if problem is None else fields_as_json(fields),
        native_id,
        identity,
        headers,
        content_type,
        invalid=problem,
        tries=tries,
        handle=entry_id,
    )


def fields_as_json(fields: Fields) -> bytes:
    """An entry's fields as the body: a JSON object of them.

    Where a name repeats or something is not UTF-8: an array of name and value pairs, with ``{"base64": …}`` for
    what is not text, so that nothing is lost. The same fields always give the same bytes.
    """
    try:
        texts = [field.decode("utf-8") for field in fields]
    except UnicodeDecodeError:
        texts = []
    pairs: object
    if texts and len(set(texts[::2])) == len(texts) // 2:
        pairs = dict(zip(texts[::2], texts[1::2], strict=True))
    else:
        pairs = [[_json_value(name), _json_value(value)] for name, value in _pairs(fields)]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":")).encode()


def fields_of(message: Outgoing, *, body: str, key: str) -> list[str | bytes]:
    """The entry that carries this message, name, value, name, value …; ``PublishRejected`` where none can.

    With no body field the body is a JSON object of the fields, texts or numbers; a number is its own text.
    """
    if message.idempotency_key is not None and not key:
        raise PublishRejected('publish: the adapter has no key: set key = "…", the field that carries one')
    fields: dict[str, str | bytes] = dict(message.headers)
    if body:
        if body in fields:
            raise PublishRejected(f"publish: header {body!r} is the field that holds the body")
        fields[body] = message.body
    else:
        fields |= _as_fields(message.body)
    if message.idempotency_key is not None:
        fields[key] = message.idempotency_key
    return [part for field in fields.items() for part in field]


def _own_id(key: bytes) -> str:
    text = _text(key)
    return f"key:{text}" if len(text.encode()) <= LONGEST_KEY else f"key:sha256:{sha256(key).hexdigest()}"


def _as_fields(body: bytes) -> dict[str, str]:
    try:
        value = json.loads(body, parse_int=str, parse_float=str)
        texts = isinstance(value, dict) and value and all(isinstance(field, str) for field in value.values())
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        texts = False
    if not texts:
        raise PublishRejected(
            "publish: the adapter has no body field, so a message is a JSON object of its fields, texts or numbers"
        )
    fields: dict[str, str] = value
    return fields


def _json_value(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}


def _pairs(fields: Fields) -> Iterable[tuple[bytes, bytes]]:
    return zip(fields[::2], fields[1::2], strict=True)


def _text(value: bytes) -> str:
    return as_text(value).replace("\x00", "\ufffd")
