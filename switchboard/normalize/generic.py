"""Provider ``generic``: any body, JSON, text or binary."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from ..model import Delivery, Shape
from .storable import NotJson, NumberText, read_json, storable_json, storable_text

#: Characters of a title: one line that a person can read.
MAX_TITLE = 200

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
        value = read_json(text)
    except NotJson:
        clean = text.replace("\x00", "\ufffd")
        title = _one_line(clean) or event_type or "Empty message"
        return Shape.of({"text": clean}, title=title, kind=event_type, event_type=event_type)
    payload = storable_json(text)
    if isinstance(value, dict):
        event_type = _first(value, _TYPE_FIELDS) or event_type
        kind = _first(value, _KIND_FIELDS) or event_type
        title = _first(value, _TITLE_FIELDS) or event_type or _fields_title(value)
    else:
        kind = event_type
        title = event_type or (_one_line(value) if _is_text(value) else _one_line(f"JSON {text}"))
    return Shape(title=title or "Empty message", kind=kind, event_type=event_type, payload=payload)


def _from_headers(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if name.lower() in _TYPE_HEADERS and (line := _one_line(value)):
            return line
    return ""


def _first(value: Mapping[str, object], names: Iterable[str]) -> str:
    for name in names:
        found = value.get(name)
        if _is_text(found) and (line := _one_line(found)):
            return line
    return ""


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and not isinstance(value, NumberText)


def _fields_title(value: Mapping[str, object]) -> str:
    return _one_line(", ".join(value)) if value else ""


def _one_line(text: str) -> str:
    """The first words of a text as a terminal can show them: no line ends, no control characters."""
    start = storable_text(text.lstrip()[: MAX_TITLE * 4])
    line = " ".join("".join(character if character.isprintable() else " " for character in start).split())
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…"
