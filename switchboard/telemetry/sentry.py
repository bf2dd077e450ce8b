"""Sentry: set up where nobody else does, and what of ours it is told, with tags and without bodies and credentials.

Reports go by way of the log: Sentry's logging integration makes an event of each record of level ERROR. What is here
tidies those events, and those of exceptions, before they are sent, whoever initialised Sentry.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import sentry_sdk
from sentry_sdk.types import Event, Hint
from sentry_sdk.utils import Dsn

from ..claimed import LeaseLost, Todo
from ..errors import ConfigError, LedgerUnavailable
from ..model import Batch
from ..redact import redact

#: The fields of our log records that become tags, and the tags.
TAGS = {
    "adapter": "switchboard.adapter",
    "queue": "switchboard.queue",
    "todo_id": "switchboard.todo",
    "reason": "switchboard.reason",
}

#: Modules in whose frames a local variable may be a body, a parameter of a statement or an address.
OUR_FRAMES = ("switchboard.", "dramatiq.", "psycopg.", "psycopg_pool.", "redis.")

#: Seconds since the last failure within which the ledger's outage is the same one, and told already.
SAME_OUTAGE = 120.0


def set_up_sentry() -> None:
    """Initialises Sentry from ``SENTRY_DSN`` where that is set and nobody has yet.

    To be called before a broker is made: Sentry's integration puts its middleware on each that is made later. No local
    variables are sent, whose text could be a body, and no personal data. Raises ``ConfigError`` for what is no DSN.
    """
    dsn = os.environ.get("SENTRY_DSN", "").strip()
    if dsn and not sentry_sdk.is_initialized():
        try:
            Dsn(dsn)
        except ValueError:
            # Its own message quotes it, with the key.
            raise ConfigError("SENTRY_DSN: not an address that can be used: expected https://KEY@HOST/NUMBER") from None
        sentry_sdk.init(
            dsn,
            include_local_variables=False,
            send_default_pii=False,
            max_request_body_size="never",
            before_send=_mask_credentials,
        )


@cache
def tidy_events() -> None:
    """From now on this process tidies what it tells of us, whoever's client sends it."""
    sentry_sdk.get_global_scope().add_event_processor(_Tidy())


def work_scope(work: Batch | Todo) -> AbstractContextManager[object] | None:
    """A scope, not yet entered, that tags what happens while this is stored or handled; None without Sentry."""
    return _tagged(_work_tags(work)) if sentry_sdk.is_initialized() else None


@contextmanager
def _tagged(tags: dict[str, str]) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tags(tags)
        yield


def _work_tags(work: Batch | Todo) -> dict[str, str]:
    if isinstance(work, Batch):
        return {"switchboard.adapter": work.route.adapter, "switchboard.queue": work.route.queue}
    return {
        "switchboard.queue": work.queue,
        "switchboard.todo": str(work.id),
        "switchboard.attempt": f"{work.attempt} of {work.max_attempts}",
    }


class _Tidy:
    """An event processor of Sentry's; what is not of ours goes through as it is."""

    def __init__(self) -> None:
        self._ledger_failed_at: float | None = None

    def __call__(self, event: Event, hint: Hint) -> Event | None:
        about: dict[str, Any] = event  # type: ignore[assignment] # its TypedDict knows only constant keys
        tags: dict[str, str] = about.setdefault("tags", {})
        tags.update(_tags_of(hint))
        if not any(tag.startswith("switchboard.") for tag in tags):
            return event
        reason = tags.get("switchboard.reason")
        if reason == "ledger_unavailable" and self._is_told():
            return None
        if reason and not about.get("fingerprint"):
            # One issue an adapter, or a queue, and reason: not one a message. The ledger is the same for all of them.
            whose = tags.get("switchboard.adapter") or tags.get("switchboard.queue") or ""
            about["fingerprint"] = ["switchboard", reason, *([whose] if reason != "ledger_unavailable" else [])]
        for frame in _frames(about):
            if "switchboard.adapter" in tags or str(frame.get("module") or "").startswith(OUR_FRAMES):
                frame.pop("vars", None)
        _drop_commands(about)
        return _mask_credentials(event, hint)

    def _is_told(self) -> bool:
        """Whether the outage that this tells of is one that was told; each consumer and each try would tell it."""
        now = time.monotonic()
        before, self._ledger_failed_at = self._ledger_failed_at, now
        return before is not None and now - before < SAME_OUTAGE


def _tags_of(hint: Hint) -> dict[str, str]:
    """What a record of ours, or an exception, says of what it is about."""
    found = {}
    record: logging.LogRecord | None = hint.get("log_record")
    if record is not None and record.name.split(".")[0] == "switchboard":
        found = {tag: str(value) for name, tag in TAGS.items() if (value := getattr(record, name, None)) is not None}
    error = (hint.get("exc_info") or (None, None))[1]
    if isinstance(error, LeaseLost):
        found["switchboard.reason"] = "lease_lost"
    elif isinstance(error, LedgerUnavailable):
        found["switchboard.reason"] = "ledger_unavailable"
    return found


def _frames(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("exception", "threads"):
        for value in (event.get(kind) or {}).get("values") or ():
            yield from (value.get("stacktrace") or {}).get("frames") or ()


def _drop_commands(event: dict[str, Any]) -> None:
    """Takes Redis commands off the trail: LREM has a body in it, where a team has asked for their arguments."""
    crumbs = event.get("breadcrumbs")
    if isinstance(crumbs, dict):
        crumbs["values"] = [crumb for crumb in crumbs.get("values") or () if crumb.get("category") != "redis"]


def _mask_credentials(event: Event, _hint: Hint) -> Event:
    """Masks credentials in what the event says, and leaves of PostgreSQL's errors the line that quotes no row."""
    about: dict[str, Any] = event  # type: ignore[assignment] # as above
    for value in (about.get("exception") or {}).get("values") or ():
        said = str(value.get("value") or "")
        if str(value.get("module") or "").startswith("psycopg"):
            said = said.partition("\n")[0]
        value["value"] = redact(said)
    entry = about.get("logentry") or {}
    for key in ("message", "formatted"):
        if isinstance(entry.get(key), str):
            entry[key] = redact(entry[key])
    return event
