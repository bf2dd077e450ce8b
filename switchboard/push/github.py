"""GitHub: ``X-Hub-Signature-256`` is the HMAC-SHA-256 of the body.

https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
"""

from __future__ import annotations

import hmac

from ..model import Delivery
from .base import Request, SignedAdapter, SignedOptions, matching


class GitHubOptions(SignedOptions):
    """Options of a ``github`` adapter."""

    provider: str = "github"


class GitHub(SignedAdapter):
    """GitHub's webhooks, JSON or form-encoded: ``GitHub("repositories", secret=…, queue="repositories")``.

    A delivery's id is ``X-GitHub-Delivery``, which a redelivery keeps. The old ``X-Hub-Signature``, of SHA-1, is not
    looked at.
    """

    sender = "github"
    options_class = GitHubOptions

    def verify(self, request: Request) -> Delivery:
        given = request.header("x-hub-signature-256")
        which = matching(self.secrets, [given], lambda secret: _sign(secret, request.body))
        return self._delivery(request, request.id_header("x-github-delivery"), f"github HMAC-SHA-256, secret {which}")


def _sign(secret: bytes, body: bytes) -> bytes:
    return b"sha256=" + hmac.new(secret, body, "sha256").hexdigest().encode()
