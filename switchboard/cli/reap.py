"""``switchboard reap``."""

from __future__ import annotations

import click

from ..ledger import Requeued, reap_expired
from ..ledger.claims import REQUEUE_STEP
from .database import ledger_connection
from .output import json_option, write, write_json


@click.command()
@click.option("--queue", help="Only todos of this queue.")
@json_option
def reap(queue: str | None, as_json: bool) -> None:
    """Requeue the todos whose lease has run out, now.

    Those whose wait for a retry is over, and those whose worker died, are pending again; what ran out in its last
    attempt is failed. Workers and `periodiq switchboard.actors` do the same by themselves.

    \b
    Examples:
      switchboard reap
      switchboard reap --queue deploys --json
    """
    requeued = Requeued()
    while True:
        # A transaction a pass: what is requeued may be worked while the rest still is to come.
        with ledger_connection("reap") as connection:
            step = reap_expired(connection, queue=queue, limit=REQUEUE_STEP)
        requeued = Requeued(pending=requeued.pending + step.pending, failed=requeued.failed + step.failed)
        if step.pending + step.failed < REQUEUE_STEP:
            break
    if as_json:
        write_json([{"pending": requeued.pending, "failed": requeued.failed}])
    else:
        write(f"requeued {requeued.pending} todos; {requeued.failed} ran out in their last attempt and are failed\n")
