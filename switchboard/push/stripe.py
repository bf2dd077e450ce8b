"""Stripe: ``Stripe-Signature`` has a time and the HMAC-SHA-256 of ``{time}.{body}``, once for each of its secrets.

https://docs.stripe.com/webhooks?verify=verify-manually
"""

from __future__ import annotations

import hmac

from ..errors import SignatureInvalid
from ..model import Delivery
from .base import Request, SignedAdapter, TimedOptions, id_in_body, matching


class StripeOptions(TimedOptions):
    """Options of a ``stripe`` adapter."""

    provider: str = "stripe"


class Stripe(SignedAdapter):
    """Stripe's webhooks: ``Stripe("payments", secret=…, queue="payments")``. A delivery's id is its event's."""

    sender = "stripe"
    options_class = StripeOptions
    _options: StripeOptions

    def verify(self, request: Request) -> Delivery:
        parts = [part.strip().partition(b"=") for part in request.header("stripe-signature").split(b",")]
        times = [value for key, _, value in parts if key == b"t"]
        # Only v1 is a signature: v0 is of test events, and others are not known.
        given = [value for key, _, value in parts if key == b"v1"]
        if len(times) != 1 or not given:
            raise SignatureInvalid("stripe-signature: expected one t and at least one v1")
        request.check_time(times[0], self._options.tolerance)
        which = matching(self.secrets, given, lambda secret: _sign(secret, times[0], request.body))
        native_id = id_in_body(request.body, "id")
        # A retry is not the bytes it was: the event counts how many webhooks are still to come.
        return self._delivery(request, native_id, f"stripe v1, secret {which}", vouched_id=True)


def _sign(secret: bytes, signed_at: bytes, body: bytes) -> bytes:
    return hmac.new(secret, signed_at + b"." + body, "sha256").hexdigest().encode()
