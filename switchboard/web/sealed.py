"""Takes what nobody may see out of a request's scope before anything can log or report it.

Access logs, error reports and a team's own middleware read the scope; a webhook's token may be in its query.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from ..redact import MASK, redact_headers

_KEY = "switchboard.sealed"
_MASK = MASK.encode("latin-1")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, repr=False)
class Sealed:
    """The headers and the query as they came."""

    headers: Sequence[tuple[bytes, bytes]]
    query: bytes


class Seal:
    """The ASGI middleware: in the scope stays what may be shown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Seals what has headers and passes it on, in the same scope: whoever logs it later has that one."""
        if "headers" in scope:
            scope[_KEY] = Sealed(tuple(scope["headers"]), scope["query_string"])
            scope["query_string"] = b""
            scope["headers"] = [_shown(name, value) for name, value in scope["headers"]]
        await self._app(scope, receive, send)


def sealed(scope: Scope) -> Sealed:
    """What was taken out of the scope."""
    found: Sealed = scope[_KEY]
    return found


def source_ip(scope: Scope, headers: Sequence[tuple[bytes, bytes]], trusted: Sequence[Network]) -> str | None:
    """Who sent it: the peer, or, where that is a trusted proxy, the last address it names that is not one.

    None where the peer has no address (a Unix socket). What a proxy says that is no address ends the search.
    """
    peer = _address(scope["client"][0]) if scope.get("client") else None
    if peer is None or not _within(peer, trusted):
        return None if peer is None else str(peer)
    named = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
    for text in reversed(named.split(",")):
        address = _address(text.strip())
        if address is None:
            break
        peer = address
        if not _within(peer, trusted):
            break
    return str(peer)


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        # PostgreSQL's inet has no zone.
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _shown(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    text = value.decode("latin-1")
    [shown] = redact_headers({name.decode("latin-1"): text}).values()
    # All of a value that holds one: nothing needs the rest.
    return name, value if shown == text else _MASK
