"""``switchboard migrate``."""

from __future__ import annotations

import click

from .. import ledger
from .database import open_ledger
from .output import json_option, write, write_json


@click.command()
@json_option
def migrate(as_json: bool) -> None:
    """Bring the database up to date.

    Applies the migrations it lacks, each in its own transaction. Workers do the same when they start; run it
    yourself where they may not change the schema.

    \b
    Examples:
      switchboard migrate
      DATABASE_URL=postgresql:///switchboard switchboard migrate
    """
    with open_ledger() as opened:
        applied = ledger.migrate(opened)
    if as_json:
        write_json([{"version": version} for version in applied])
    else:
        write("".join(f"applied {version}\n" for version in applied) or "up to date\n")
