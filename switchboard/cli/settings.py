"""``switchboard settings``: what operators tune without a deploy."""

from __future__ import annotations

import click

from ..ledger import SETTINGS, get_setting, list_settings, set_setting
from .database import ledger_connection
from .output import json_option, write, write_table

_COLUMNS = ("key", "value", "default", "meaning")


@click.group()
def settings() -> None:
    """Show and change the settings in the ledger, which every worker reads.

    \b
    Examples:
      switchboard settings list
      switchboard settings set retention_max_age_days 14
    """


@settings.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List every setting with its value, its default and what it decides.

    \b
    Examples:
      switchboard settings list
      switchboard settings list --json
    """
    with ledger_connection("list settings") as connection:
        values = list_settings(connection)
    write_table([_row(key, values[key]) for key in values], _COLUMNS, nothing="no settings", as_json=as_json)


@settings.command()
@click.argument("key")
@json_option
def get(key: str, as_json: bool) -> None:
    """Print one setting's value.

    \b
    Examples:
      switchboard settings get retention_max_rows
    """
    with ledger_connection(f"get setting {key}") as connection:
        value = get_setting(connection, key)
    if as_json:
        write_table([_row(key, value)], _COLUMNS, nothing="", as_json=True)
    else:
        write(f"{value}\n")


@settings.command("set")
@click.argument("key")
@click.argument("value")
@json_option
def set_(key: str, value: str, as_json: bool) -> None:
    """Change one setting; the next run of what reads it goes by it.

    \b
    Examples:
      switchboard settings set retention_max_age_days 14
      switchboard settings set dead_letters_max_rows 1000
    """
    with ledger_connection(f"set setting {key}") as connection:
        set_setting(connection, key, value)
        stored = get_setting(connection, key)
    write_table([_row(key, stored)], _COLUMNS, nothing="", as_json=as_json)


def _row(key: str, value: str) -> dict[str, object]:
    known = SETTINGS.get(key)
    return {
        "key": key,
        "value": value,
        "default": known.default if known else None,
        "meaning": known.meaning if known else "unknown here: of a newer version, or put there by hand",
    }
