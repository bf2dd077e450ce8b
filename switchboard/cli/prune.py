"""``switchboard prune``."""

from __future__ import annotations

import click

from .. import ledger
from ..ledger.retention import PRUNE_TIMEOUT
from .database import ledger_connection
from .output import json_option, write, write_json


@click.command()
@json_option
def prune(as_json: bool) -> None:
    """Delete what retention no longer keeps.

    Events and finished todos older than the setting retention_max_age_days, then the oldest beyond
    retention_max_rows. Todos that are pending or claimed stay, and their events with them. `periodiq
    switchboard.actors` does the same every hour.

    \b
    Examples:
      switchboard prune
      switchboard prune --json
    """
    # Its statements may take longer than others: the server has to be told so, too.
    with ledger_connection("prune", PRUNE_TIMEOUT) as connection:
        pruned = ledger.prune(connection)
    if as_json:
        write_json([] if pruned is None else [{"events": pruned.events, "todos": pruned.todos}])
    elif pruned is None:
        write("another session is pruning; nothing done\n")
    else:
        write(f"pruned {pruned.events} events and {pruned.todos} todos\n")
