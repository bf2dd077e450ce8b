"""Whose address a request is from, and what of it stays where others look."""

import asyncio
import ipaddress
from collections.abc import MutableMapping
from typing import Any

import pytest

pytest.importorskip("starlette")

from switchboard.web.sealed import Seal, sealed, source_ip

TRUSTED = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/32")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("198.51.100.7", [], "198.51.100.7"),
        # Nobody but a trusted proxy is believed.
        ("198.51.100.7", ["203.0.113.9"], "198.51.100.7"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        # What stands left of the first address that no trusted proxy vouches for is the sender's own invention.
        ("10.1.2.3", ["192.0.2.1, 203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["192.0.2.1, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ("10.1.2.3", ["192.0.2.1", "203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["10.9.9.9"], "10.9.9.9"),
        ("10.1.2.3", ["203.0.113.9, nonsense"], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.9, nonsense, 10.9.9.9"], "10.9.9.9"),
        ("10.1.2.3", ["203.0.113.9:5555"], "10.1.2.3"),
        ("10.1.2.3", ["'; DROP TABLE events"], "10.1.2.3"),
        ("2001:db8::1", ["2001:470::9"], "2001:470::9"),
        ("::ffff:10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        ("fe80::1%eth0", [], "fe80::1"),
        ("", [], None),
        (None, ["203.0.113.9"], None),
    ],
)
def test_only_a_trusted_proxy_says_who_it_is_for(peer: str | None, forwarded: list[str], source: str | None) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope: MutableMapping[str, Any] = {"client": None if peer is None else (peer, 1)}
    assert source_ip(scope, headers, TRUSTED) == source


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_what_others_see_of_a_request_has_no_query_and_no_proof(kind: str) -> None:
    seen: list[MutableMapping[str, Any]] = []

    async def app(scope: MutableMapping[str, Any], _receive: object, _send: object) -> None:
        seen.append(scope)

    headers = [(b"x-hub-signature-256", b"sha256=1234"), (b"x-trace", b"7"), (b"x-uri", b"/a?token=abc")]
    scope: MutableMapping[str, Any] = {"type": kind, "headers": headers, "query_string": b"token=abc"}
    asyncio.run(Seal(app)(scope, None, None))  # type: ignore[arg-type]
    assert seen == [scope], "the same scope: whoever logs it later has that one"
    assert scope["query_string"] == b""
    assert dict(scope["headers"])[b"x-trace"] == b"7"
    assert "1234" not in repr(scope)
    assert "abc" not in repr(scope)
    assert sealed(scope).query == b"token=abc"
    assert list(sealed(scope).headers) == headers
