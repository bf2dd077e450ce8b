"""Standard Webhooks: ``webhook-signature`` has the HMAC-SHA-256 of ``{id}.{time}.{body}``, in base64.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

Its own library decodes the body as text and reads the clock itself, so this is ours.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from datetime import timedelta

from pydantic import SecretStr

from ..errors import SignatureInvalid
from .base import Request, matching

#: What a secret begins with; the rest is base64.
SECRET_PREFIX = "whsec_"  # noqa: S105 - no secret


def secret_bytes(secret: str) -> bytes:
    """The bytes to sign with; ``ValueError`` where the secret is not base64, after ``whsec_`` or without it."""
    encoded = secret.removeprefix(SECRET_PREFIX)
    # Some senders leave the padding out.
    key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    if not key:
        raise ValueError("it is empty")
    return key


def check_signature(request: Request, secrets: Sequence[SecretStr], tolerance: timedelta) -> tuple[str, str]:
    """The delivery's id and which secret signed it; ``SignatureInvalid`` where none did, or its time is not now."""
    message_id = request.id_header("webhook-id")
    if message_id is None:
        raise SignatureInvalid("webhook-id is missing")
    signed_at = request.time_header("webhook-timestamp", tolerance)
    given = [one for one in request.header("webhook-signature").split(b" ") if one.startswith(b"v1,")]
    if not given:
        raise SignatureInvalid("webhook-signature: expected at least one v1")
    content = message_id.encode() + b"." + signed_at + b"." + request.body
    which = matching(secrets, given, lambda secret: _sign(secret_bytes(secret.decode()), content))
    return message_id, f"standard webhooks v1, secret {which}"


def _sign(key: bytes, content: bytes) -> bytes:
    return b"v1," + base64.b64encode(hmac.digest(key, content, "sha256"))
