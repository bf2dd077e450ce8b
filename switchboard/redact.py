"""What must never be shown, logged or stored: one place decides what a credential is and what stands for it."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: What stands where a credential stood.
MASK = "***"

_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s:/@?#]*):(?P<password>[^\s/]*)@")
_NAMED_SECRET = re.compile(
    r"(?P<name>[\w-]*(?:password|passwd|secret|token|api[_-]?key|sslkey)[\w-]*)(?P<sep>\s*[=:]\s*)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s&;,'\"]+)",
    re.IGNORECASE,
)
_SECRET_HEADER = re.compile(
    r"authorization|cookie|password|passwd|secret|token|api[_-]?key|credential|signature|private[_-]?key",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """The text with the passwords of addresses and ``password=…``-like pairs masked.

    Use it on whatever another library said: an address, a connection string or an error message.
    """
    text = _USERINFO.sub(rf"\g<scheme>\g<user>:{MASK}@", text)
    return _NAMED_SECRET.sub(rf"\g<name>\g<sep>{MASK}", text)


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with the values of those that carry a credential masked, names and order kept."""
    return {
        name: MASK if _SECRET_HEADER.search(name) else redact(value) if "://" in value else value
        for name, value in headers.items()
    }


def safe_text(error: BaseException | str, limit: int = 500) -> str:
    """An error as text that PostgreSQL can store and a person may see.

    Credentials are masked, NUL and lone surrogates replaced (PostgreSQL's ``text`` refuses both), and what is
    longer than ``limit`` characters is cut.
    """
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    text = redact(text).replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"
