"""Slack: ``X-Slack-Signature`` is the HMAC-SHA-256 of ``v0:{time}:{body}``.

https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import hmac

from ..model import Delivery
from .base import Request, SignedAdapter, TimedOptions, field_of, id_in_body, matching


class SlackOptions(TimedOptions):
    """Options of a ``slack`` adapter."""

    provider: str = "slack"


class Slack(SignedAdapter):
    """Slack's events, commands and interactions: ``Slack("support", secret=…, queue="support")``.

    An event's id is its ``event_id``; commands and interactions have none. ``url_verification``, by which Slack asks
    whether an address is ours, is answered.
    """

    sender = "slack"
    options_class = SlackOptions
    _options: SlackOptions

    def verify(self, request: Request) -> Delivery:
        given = request.header("x-slack-signature")
        signed_at = request.time_header("x-slack-request-timestamp", self._options.tolerance)
        which = matching(self.secrets, [given], lambda secret: _sign(secret, signed_at, request.body))
        native_id = id_in_body(request.body, "event_id")
        return self._delivery(request, native_id, f"slack v0, secret {which}")

    def answer(self, delivery: Delivery) -> str | None:
        # Before it is parsed once more: all others have no such word, or have it somewhere else.
        if b"url_verification" not in delivery.body or field_of(delivery.body, "type") != "url_verification":
            return None
        challenge = field_of(delivery.body, "challenge")
        return challenge if isinstance(challenge, str) else ""


def _sign(secret: bytes, signed_at: bytes, body: bytes) -> bytes:
    return b"v0=" + hmac.new(secret, b"v0:" + signed_at + b":" + body, "sha256").hexdigest().encode()
