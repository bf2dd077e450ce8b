"""Credentials that Switchboard makes: shown once, kept as a hash, known by how they begin. No SQL is here.

SHA-256 without a salt is enough where what it hashes is 256 random bits: there is nothing to guess (SPEC-0004, No
plaintext secrets at rest).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from typing import Literal

from ..errors import CredentialInvalid

Kind = Literal["endpoint", "session"]

#: What a credential begins with, so that scanners for leaked secrets can find it.
STARTS: dict[Kind, str] = {"endpoint": "swb_", "session": "swbs_"}

#: Letters and digits alone: a double click selects all of it, and no header or address needs it encoded.
_ALPHABET = string.digits + string.ascii_letters

#: Characters of the alphabet above that carry 256 bits.
SECRET_LENGTH = 43

#: Characters of the secret that are kept beside its hash, for people to tell credentials apart: 47 of its 256 bits.
SHOWN_LENGTH = 8

_FORMS = {kind: re.compile(rf"{start}[0-9A-Za-z]{{{SECRET_LENGTH}}}") for kind, start in STARTS.items()}


@dataclass(frozen=True, slots=True)
class Minted:
    """A new credential: ``plaintext`` is for its holder alone, the rest for the ledger."""

    plaintext: str = field(repr=False)
    digest: bytes
    prefix: str


def mint(kind: Kind) -> Minted:
    """A new credential of this kind, from the system's source of randomness."""
    start = STARTS[kind]
    plaintext = start + "".join(secrets.choice(_ALPHABET) for _ in range(SECRET_LENGTH))
    return Minted(plaintext, _sha256(plaintext), plaintext[: len(start) + SHOWN_LENGTH])


def digest_of(kind: Kind, credential: str) -> bytes:
    """The hash to look the credential up by; ``CredentialInvalid`` for what has not the form of one."""
    if not _FORMS[kind].fullmatch(credential):
        raise refusal(kind)
    return _sha256(credential)


def same(given: bytes, kept: bytes) -> bool:
    """Whether two hashes are equal, in a time that says nothing of where they differ."""
    return hmac.compare_digest(given, kept)


def refusal(kind: Kind) -> CredentialInvalid:
    """What is raised whatever was wrong with a credential."""
    return CredentialInvalid(f"no {kind} in force has this credential")


def _sha256(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("ascii")).digest()
