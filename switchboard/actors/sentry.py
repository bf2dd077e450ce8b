"""Sentry for a worker that sets it up by its environment alone."""

from __future__ import annotations

import os

import sentry_sdk


def set_up_sentry() -> None:
    """Initialises Sentry from ``SENTRY_DSN`` where that is set and nobody has yet; before the broker is made, as its
    integration puts a middleware on each broker that is made later.

    Nothing of a message is sent: no local variables, whose text could be a body, and no personal data.
    """
    if os.environ.get("SENTRY_DSN", "").strip() and not sentry_sdk.is_initialized():
        sentry_sdk.init(include_local_variables=False, send_default_pii=False, max_request_body_size="never")
