"""A shared token, in a header or in the address: it says who sends, and nothing of whether the body is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

from pydantic import SecretStr

from ..errors import SignatureInvalid
from .base import Request, matching

#: The header for senders that can set one; ``Authorization: Bearer …`` does as well, and ``?token=`` for the others.
TOKEN_HEADER = "x-webhook-token"  # noqa: S105 - a header's name

#: Fields of a query that are looked through.
MAX_FIELDS = 100

_SCHEME = b"bearer "


def check_token(request: Request, tokens: Sequence[SecretStr]) -> str:
    """Where the token was and which it is, for ``verify_detail``.

    Raises ``SignatureInvalid`` where it is missing, wrong or there more than once.
    """
    found = list(_given(request))
    if len(found) != 1:
        raise SignatureInvalid("more than one token" if found else f"no token, in {TOKEN_HEADER} or as ?token=")
    where, given = found[0]
    return f"token in {where}, {matching(tokens, [given], lambda token: token)}"


def _given(request: Request) -> list[tuple[str, bytes]]:
    found = []
    own = request.header_or_none(TOKEN_HEADER)
    if own is not None:
        found.append((TOKEN_HEADER, own))
    authorization = request.header_or_none("authorization")
    if authorization is not None and authorization[: len(_SCHEME)].lower() == _SCHEME:
        found.append(("authorization", authorization[len(_SCHEME) :].strip()))
    if request.query.count(b"&") >= MAX_FIELDS:
        raise SignatureInvalid("its query has too many fields")
    # A character a byte: parse_qsl takes bytes, and answers with them, for ASCII alone.
    pairs = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    found += [("the query", value.encode("latin-1")) for name, value in pairs if name == "token"]
    return found
