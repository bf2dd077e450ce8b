"""A pooler between us and PostgreSQL, found from outside: what a session keeps is not there any more."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LedgerError
from ..finding import Finding
from ..ledger import Connection, Ledger
from ..ledger import inspection as ask

SUBJECT = "PostgreSQL"


def check_pooler(ledger: Ledger, connection: Connection) -> Iterator[Finding]:
    """Whether one is there, in which mode, and whether nudges for todos come through."""
    announced, answering = ask.announced_pid(connection)
    try:
        keeps = ask.keeps_sessions(ledger)
    except LedgerError as error:
        if "statement pooling" not in str(error):
            raise
        yield Finding(
            "pooler", SUBJECT, "error", "a pooler in statement mode is in between: it allows no transaction",
            "pool_mode = transaction in PgBouncer",
        )  # fmt: skip
        return
    if not keeps:
        yield Finding(
            "pooler", SUBJECT, "ok",
            "a pooler in transaction mode is in between: Switchboard keeps nothing in a session, but for listening",
        )  # fmt: skip
    elif announced != answering:
        yield Finding(
            "pooler", SUBJECT, "warning", "a pooler in session mode is in between: a thread holds each connection",
            "pool_mode = transaction in PgBouncer, as Switchboard keeps nothing in a session",
        )  # fmt: skip
    else:
        yield Finding("pooler", SUBJECT, "ok", "no pooler is in between")
    if ledger.notify:
        yield from _listening(ledger)


def _listening(ledger: Ledger) -> Iterator[Finding]:
    remedy = "set SWITCHBOARD_LISTEN_URL to PostgreSQL's own address of this database, or SWITCHBOARD_NOTIFY=off"
    try:
        heard = ask.hears_notifications(ledger)
    except LedgerError as error:
        yield Finding("listen", SUBJECT, "error", f"cannot listen for todos: {error}", remedy)
        return
    if heard:
        yield Finding("listen", SUBJECT, "ok", "announcements of todos are heard")
    else:
        yield Finding(
            "listen", SUBJECT, "warning",
            "announcements of todos are not heard: each waits for the next scan, up to a second", remedy,
        )  # fmt: skip
