"""A provider's document: read from a delivery's body, and looked into without trusting its form.

A provider sends what it documents, until it changes or somebody else sends: what is missing, or is of another type
than documented, counts as nothing said.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

from ..errors import MessageInvalid
from ..model import Delivery, type_json
from .storable import NotJson, NumberText, read_json

# What JSON in a form is full of. Undone by str.replace first, the whole takes less than half the time, and none of
# these can be part of another escape or part a field from the next.
_FREQUENT_ESCAPES = tuple((f"%{ord(character):02X}", character) for character in '"{}[]:,/')


def body_text(delivery: Delivery, provider: str) -> str:
    """The body as text; ``MessageInvalid`` for what is not UTF-8."""
    try:
        return delivery.body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageInvalid(f"{provider} sends UTF-8, and this body is not: {error.reason}") from None


def read_document(text: str, provider: str) -> type_json:
    """The document's value as ``read_json`` has it; ``MessageInvalid`` for what is not JSON."""
    try:
        return read_json(text)
    except NotJson as error:
        raise MessageInvalid(f"{provider} sends JSON, and this body is not: {error}") from None


def form_fields(text: str) -> dict[str, str]:
    """The fields of an ``application/x-www-form-urlencoded`` body; of a repeated one the last."""
    for escape, character in _FREQUENT_ESCAPES:
        text = text.replace(escape, character)
    return dict(parse_qsl(text, keep_blank_values=True))


def at(value: type_json, *path: str) -> type_json:
    """What stands at the end of a path of names, or None."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def text_at(value: type_json, *path: str) -> str:
    """The text or number there, as it was written, or nothing."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def number_at(value: type_json, *path: str) -> str:
    """The number there, as it was written, or nothing."""
    found = at(value, *path)
    return found if isinstance(found, NumberText) else ""


def list_at(value: type_json, *path: str) -> Sequence[type_json]:
    """The list there, or an empty one."""
    found = at(value, *path)
    return found if isinstance(found, list) else ()


def first_text(value: type_json, *names: str) -> str:
    """The first of these fields that says something."""
    if isinstance(value, dict):
        for name in names:
            found = value.get(name)
            if found and isinstance(found, str):
                return found
    return ""
