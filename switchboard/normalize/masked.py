"""A member of a JSON object masked where it stands in the text, and nothing else of the document written anew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ..model import JsonText
from ..redact import MASK

_BETWEEN = re.compile(r"[ \t\r\n]*[:,]?[ \t\r\n]*")

# Numbers stay text: Python's int refuses long ones.
_decode = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def mask_member(text: str, name: str) -> JsonText:
    """The object with the value of its member of that name, be it repeated or escaped, replaced by ``MASK``.

    ``text`` is an object that ``read_json`` has read and found to have that member; ``name`` is of lower-case letters.
    Members of that name further down stay as they are.
    """
    parts = []
    copied = 0
    for start, end in _only_member(text, name) or _members(text, name):
        parts += [text[copied:start], f'"{MASK}"']
        copied = end
    parts.append(text[copied:])
    return JsonText("".join(parts))


def _only_member(text: str, name: str) -> list[tuple[int, int]]:
    """Where the value is, if the name is in the text but once and no letter is escaped: then that is the member's."""
    quoted = f'"{name}"'
    # A lower-case letter's escape is one of \u0061 to \u007a.
    if text.count(quoted) != 1 or "\\u006" in text or "\\u007" in text:
        return []
    start = _after(text, text.index(quoted) + len(quoted))
    return [(start, _decode(text, start)[1])]


def _members(text: str, name: str) -> Iterator[tuple[int, int]]:
    position = _after(text, text.index("{") + 1)
    while text[position] != "}":
        member, position = _decode(text, position)
        start = _after(text, position)
        _, end = _decode(text, start)
        if member == name:
            yield start, end
        position = _after(text, end)


def _after(text: str, position: int) -> int:
    between = _BETWEEN.match(text, position)
    return between.end() if between else position
