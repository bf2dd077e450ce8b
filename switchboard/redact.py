"""What must never be shown, logged or stored: one place decides what a credential is and what stands for it.

Every pattern has bounds, so that a body quoted in an error costs time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: What stands where a credential stood.
MASK = "«redacted»"

#: Characters beyond those shown that are searched for credentials: one that is cut in two would not be recognised.
_MARGIN = 4096

_USER = re.compile(r"://[^\s:/@?#]{0,256}:")
_SPACE = re.compile(r"\s")
_NAMED_SECRET = re.compile(
    r"((?:password|passwd|secret|token|api[_-]?key|sslkey)[\w-]{0,40}[\"']?\s{0,8}[=:]\s{0,8})"
    r"(?:'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z)|\S+)",
    re.IGNORECASE | re.DOTALL,
)
# One of our own, wherever it stands: it says by itself what it is.
_CREDENTIAL = re.compile(r"(swbs?_)[0-9A-Za-z]{43}")
# Of keys only those that open something: a message's key, a routing key and an idempotency key are for people.
_SECRET_HEADER = re.compile(
    r"auth(?!or)|authorization|cookie|session|password|passwd|secret|token|credential|signature|hmac|jwt|assertion|oidc"
    r"|client[_-]?cert|(?<![a-z])sig(?![a-z])|^x[_-]key$"
    r"|(?:access|account|admin|api|app|client|functions?|license|master|private|service|shared|signing"
    r"|subscription|webhook)[_-]?key",
    re.IGNORECASE,
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def redact(text: str) -> str:
    """The text with the passwords of addresses, ``password=…``-like pairs and Switchboard's own credentials masked.

    Use it on whatever another library said: an address, a connection string or an error message.
    """
    text = _NAMED_SECRET.sub(rf"\1{MASK}", _without_passwords(text))
    return _CREDENTIAL.sub(rf"\1{MASK}", text)


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with the values of those that carry a credential masked, names and order kept."""
    return {
        name: MASK if _SECRET_HEADER.search(name) else redact(value) if "://" in value or "=" in value else value
        for name, value in headers.items()
    }


def safe_text(error: BaseException | str, limit: int = 500) -> str:
    """An error as text that PostgreSQL can store and a person may see.

    Credentials are masked, NUL and lone surrogates replaced (PostgreSQL's ``text`` refuses both), and what is
    longer than ``limit`` characters is cut.
    """
    text = error if isinstance(error, str) else _said_by(error)
    text = _SURROGATE.sub("\ufffd", redact(text[: limit + _MARGIN]).replace("\x00", "\ufffd"))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _without_passwords(text: str) -> str:
    """Each address's password masked, up to the last @ before a space.

    An unencoded / or @ in a password is just what a client's error quotes. No pattern does the whole of it: it would
    look for that @ from each of many ``://:`` anew.
    """
    shown: list[str] = []
    done = begin = 0
    while user := _USER.search(text, begin):
        space = _SPACE.search(text, user.end())
        begin = space.start() if space else len(text)
        last = text.rfind("@", user.end() + 1, begin)
        if last >= 0:
            shown += text[done : user.end()], MASK
            done = last
    return "".join([*shown, text[done:]])


def _said_by(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error whose own text cannot be made is still one of its class
        return type(error).__name__
