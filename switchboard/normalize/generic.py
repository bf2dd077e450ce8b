"""Provider ``generic``: any body, JSON, text or binary."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from ..model import Delivery, JsonText, Shape, type_json
from .storable import NotJson, NumberText, read_texts, storable_json
from .title import one_line

_TITLE_FIELDS = ("title", "subject", "summary", "name", "message", "text", "description")
_TYPE_FIELDS = ("event_type", "event", "type", "kind")
_KIND_FIELDS = ("kind", "type", "event_type", "event")
_TYPE_HEADERS = ("event_type", "event-type", "x-event-type", "type", "ce-type", "ce_type")


def normalize_generic(delivery: Delivery) -> Shape:
    """Shapes any body: JSON keeps its structure, text becomes ``{"text": …}``, bytes ``{"base64": …}``.

    Title, kind and event type come from the fields and headers people use for them, else from what the body is.
    Raises ``MessageInvalid`` for JSON that PostgreSQL cannot hold.
    """
    event_type = _from_headers(delivery.headers)
    try:
        text = delivery.body.decode("utf-8")
    except UnicodeDecodeError:
        encoded = base64.b64encode(delivery.body).decode("ascii")
        title = f"{len(delivery.body):,} bytes of binary data"
        return Shape.of({"base64": encoded}, title=event_type or title, kind=event_type, event_type=event_type)
    try:
        value = read_texts(delivery.body, text)
    except NotJson:
        clean = text.replace("\x00", "\ufffd")
        title = one_line(clean) or event_type or "Empty message"
        return Shape.of({"text": clean}, title=title, kind=event_type, event_type=event_type)
    return shape_json(value, text, storable_json(text), event_type)


def shape_json(value: type_json, text: str, payload: JsonText | None, event_type: str = "") -> Shape:
    """The shape of any JSON document: its value, its text, and the payload to be stored.

    ``value`` is as ``read_json`` or ``read_texts`` has it, since only its names and texts are looked at. ``event_type``
    is what its headers say of it; a field of its own outranks that.
    """
    if isinstance(value, dict):
        event_type = _first(value, _TYPE_FIELDS) or event_type
        kind = _first(value, _KIND_FIELDS) or event_type
        title = _first(value, _TITLE_FIELDS) or event_type or _fields_title(value)
    else:
        kind = event_type
        title = event_type or one_line(value if _is_text(value) else f"JSON {text}")
    return Shape(title=title or "Empty message", kind=kind, event_type=event_type, payload=payload)


def _from_headers(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if name.lower() in _TYPE_HEADERS and (line := one_line(value)):
            return line
    return ""


def _first(value: Mapping[str, object], names: Iterable[str]) -> str:
    for name in names:
        found = value.get(name)
        if _is_text(found) and (line := one_line(found)):
            return line
    return ""


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and not isinstance(value, NumberText)


def _fields_title(value: Mapping[str, object]) -> str:
    return one_line(", ".join(value)) if value else ""
