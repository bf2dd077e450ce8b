"""Text and JSON as they arrive, and as PostgreSQL takes them: what it would refuse is found before it is sent.

Numbers are never turned into floats, and the text is never written anew: what is stored is what came, but for the
two things ``jsonb`` cannot hold (U+0000 and lone surrogates), which become U+FFFD escape by escape. The exact
bytes are in ``events.payload`` all the same.
"""

from __future__ import annotations

import json
import re

from pydantic_core import from_json

from ..errors import MessageInvalid
from ..model import JsonText, type_json

#: Levels of nesting accepted. PostgreSQL's own limit is a stack depth; readers in other languages have lower ones.
MAX_DEPTH = 500

#: Decimal digits ``numeric`` holds before and after the point.
MAX_DIGITS_BEFORE, MAX_DIGITS_AFTER = 131_072, 16_383

# A string that is never closed ends with the text: else each quote in it would be the start of another search.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)', re.DOTALL)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BRACKETS = re.compile(r"[\[{\]}]")
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)
_UNSTORABLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})")


# A body made flat: each digit is 0, each E is e. One of these stands in every flat body that has a number outside of
# what numeric holds.
_FLAT = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 6_000
_LARGE_EXPONENTS = (b"0e000000", b"0e+000000", b"0e-00000")

#: What a JSON document can begin with.
_BEGINNINGS = frozenset('{["-0123456789tfn')


class NumberText(str):
    """A JSON number as it was written."""

    __slots__ = ()


class NotJson(ValueError):
    """The text is not a JSON document."""


def read_json(text: str) -> type_json:
    """The document's value, with every number as its own ``NumberText``.

    Raises ``NotJson`` for what is not JSON, and ``MessageInvalid`` for JSON that ``jsonb`` cannot hold: nested
    deeper than ``MAX_DEPTH`` levels, or with a number out of range.
    """
    if text.lstrip(" \t\r\n")[:1] not in _BEGINNINGS:
        raise NotJson("it begins as no JSON document does")
    _check_depth(text)
    try:
        return _DECODER.decode(text)
    except MessageInvalid:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def read_texts(body: bytes, text: str) -> type_json:
    """As ``read_json``, for who looks at names and texts alone: numbers may be Python's own, and rounded.

    ``body`` is ``text`` in UTF-8. Nearly every document is read by a decoder that is three times as fast and takes
    nothing that is not JSON; what it refuses, and numbers it would wave through, are ``read_json``'s to judge.
    """
    flat = body.translate(_FLAT)
    large = b"0e" in flat and any(exponent in flat for exponent in _LARGE_EXPONENTS)
    if not large and _MANY_DIGITS not in flat:
        try:
            return from_json(text, allow_inf_nan=False, cache_strings="keys")
        except ValueError:
            # A lone surrogate, a large integer, a deep document: not JSON to it, but to jsonb it may be.
            pass
    return read_json(text)


def storable_json(text: str) -> JsonText | None:
    """The document as ``jsonb`` takes it, or None where that is the document as it is."""
    if "\\u" not in text:
        return None
    # Every backslash of a JSON text begins an escape inside a string, so a scan from left to right cannot take
    # the second backslash of an escaped one for the start of the next.
    storable = _ESCAPE.sub(_replace_escape, text)
    return None if storable == text else JsonText(storable)


def storable_text(text: str) -> str:
    """The text as ``text`` columns take it: NUL and lone surrogates replaced."""
    if text.isascii() and "\x00" not in text:
        return text
    return _SURROGATE.sub("\ufffd", text.replace("\x00", "\ufffd"))


def _replace_escape(match: re.Match[str]) -> str:
    escape = match[0]
    return "\\ufffd" if len(escape) == 6 and _UNSTORABLE.fullmatch(escape) else escape


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        if depth != 0:
            raise NotJson("its brackets do not match")
        raise MessageInvalid(f"nested deeper than {MAX_DEPTH} levels")


def _number(text: str) -> NumberText:
    if len(text) < 300 and "e" not in text and "E" not in text:
        return NumberText(text)
    mantissa, _, exponent_text = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    exponent = int(exponent_text or 0) if len(exponent_text) < 12 else MAX_DIGITS_BEFORE * 2
    before, after = len(whole) + exponent, len(fraction) - exponent
    if before > MAX_DIGITS_BEFORE or after > MAX_DIGITS_AFTER:
        raise MessageInvalid(f"a number outside what PostgreSQL's numeric holds ({text[:40]}…)")
    return NumberText(text)


def _constant(name: str) -> str:
    raise NotJson(f"{name} is not JSON")


# Made once: json.loads makes one a call where it is given functions, which costs more than reading a small document.
_DECODER = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_constant)
