"""``switchboard reap``."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..config import load_adapters
from ..errors import SwitchboardError
from ..ledger import count_expired
from ..reaper import Reaped, requeue_expired
from ..reaper import reap as reap_all
from .database import ledger_connection, open_ledger, says_not_migrated
from .options import dry_run_option
from .output import json_option, write, write_json


@click.command()
@click.option("--queue", help="Only todos of this queue, and nothing else.")
@dry_run_option
@json_option
def reap(queue: str | None, dry_run: bool, as_json: bool) -> None:
    """Take back what dead workers left, now.

    Todos whose lease has run out are pending again, or failed where it was their last attempt. At each adapter's
    source, what dead workers hold can be taken by anyone at once, and those that hold nothing are forgotten. The index
    that claims depend on is rebuilt where it is bloated. `periodiq switchboard.actors` does the same every minute.
    With --dry-run the todos are counted, and nothing is done.

    \b
    Examples:
      switchboard reap
      switchboard reap --dry-run
      switchboard reap --queue deploys --json
    """
    reaped = _expired(queue) if dry_run else _reap(queue)
    if as_json:
        write_json([] if reaped is None else [asdict(reaped)])
    elif reaped is None:
        write("another session is reaping; nothing done\n")
    else:
        write(_said(reaped, "would requeue" if dry_run else "requeued"))
    if reaped is not None and reaped.unreachable:
        raise SwitchboardError(f"reap: {reaped.unreachable} sources gave no answer")


def _expired(queue: str | None) -> Reaped:
    with ledger_connection("reap") as connection:
        expired = count_expired(connection, queue=queue)
    return Reaped(expired.pending, expired.failed)


def _reap(queue: str | None) -> Reaped | None:
    adapters = [] if queue is not None else load_adapters()
    try:
        with open_ledger() as ledger, says_not_migrated("reap"):
            if queue is None:
                return reap_all(ledger, adapters)
            requeued = requeue_expired(ledger, queue=queue)
            return Reaped(requeued.pending, requeued.failed)
    finally:
        for adapter in adapters:
            adapter.close()


def _said(reaped: Reaped, requeued: str) -> str:
    said = f"{requeued} {reaped.pending} todos; {reaped.failed} ran out in their last attempt and are failed\n"
    if reaped.deliveries or reaped.consumers:
        said += f"freed {reaped.deliveries} deliveries of dead workers, and forgot {reaped.consumers} consumers\n"
    return said + ("rebuilt idx_todos_pending\n" if reaped.rebuilt else "")
