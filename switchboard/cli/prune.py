"""``switchboard prune``."""

from __future__ import annotations

from dataclasses import asdict

import click

from .. import ledger
from ..ledger.retention import PRUNE_TIMEOUT
from .database import ledger_connection
from .options import dry_run_option
from .output import json_option, write, write_json


@click.command()
@dry_run_option
@json_option
def prune(dry_run: bool, as_json: bool) -> None:
    """Delete what retention no longer keeps.

    Events, ended todos and dead letters that are older than their setting allows, then the oldest beyond their cap
    (`switchboard settings list`), in one transaction. Todos that are pending or claimed stay, and their events with
    them. `periodiq switchboard.actors` does the same every hour. With --dry-run it is all done and taken back.

    \b
    Examples:
      switchboard prune --dry-run
      switchboard prune --json
    """
    # Its statements may take longer than others: the server has to be told so, too.
    with ledger_connection("prune", PRUNE_TIMEOUT, dry_run=dry_run) as connection:
        pruned = ledger.prune(connection)
    if as_json:
        write_json([] if pruned is None else [asdict(pruned)])
    elif pruned is None:
        write("another session is pruning; nothing done\n")
    else:
        unresolved = f" ({pruned.unresolved} of them unresolved)" if pruned.unresolved else ""
        write(
            f"{'would prune' if dry_run else 'pruned'} {pruned.events} events, {pruned.todos} todos and "
            f"{pruned.dead_letters} dead letters{unresolved}\n"
        )
