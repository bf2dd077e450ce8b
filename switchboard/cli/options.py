"""Arguments and options that several commands share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

#: A row's id.
ROW_ID = click.IntRange(min=1)

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True, type=ROW_ID)
some_ids_argument = click.argument("ids", metavar="[ID]...", type=click.IntRange(min=1), nargs=-1)

limit_option = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Rows to list, at most."
)

before_option = click.option(
    "--before", metavar="ID", type=ROW_ID, help="Only ids below this one: the last id of the page before."
)


dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


def nearest(word: str, known: Iterable[str]) -> str:
    """A suggestion to end an error with; empty where nothing is near."""
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
