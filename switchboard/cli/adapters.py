"""``switchboard adapters``: who feeds the ledger, and whether it may."""

from __future__ import annotations

import click

from ..errors import NotFound
from ..ledger import AdapterRow, Connection, list_adapters, set_adapter_enabled
from .database import ledger_connection
from .options import nearest
from .output import json_option, redacted, write_table

_COLUMNS = ("name", "type", "queue", "enabled", "trust", "key_prefix")


@click.group()
def adapters() -> None:
    """List the adapters; stop them, let them go on.

    \b
    Examples:
      switchboard adapters list
      switchboard adapters disable deploys
    """


@adapters.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the adapters, by name.

    An adapter is listed from the first start of a worker that has it. All of this comes from the ledger: no
    broker is asked.

    \b
    Examples:
      switchboard adapters list
      switchboard adapters list --json
    """
    with ledger_connection("list adapters") as connection:
        found = list_adapters(connection)
    _show(found, as_json)


@adapters.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def enable(names: tuple[str, ...], as_json: bool) -> None:
    """Let adapters consume again.

    Running workers go on within two seconds, with no restart. All of the named, or none where one is unknown.

    \b
    Examples:
      switchboard adapters enable deploys
      switchboard adapters enable deploys repositories
    """
    _set_enabled(names, True, as_json)


@adapters.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def disable(names: tuple[str, ...], as_json: bool) -> None:
    """Stop adapters from consuming.

    Running workers read nothing more of them within two seconds; what waits at the source stays there. All of
    the named, or none where one is unknown.

    \b
    Examples:
      switchboard adapters disable deploys
      switchboard adapters disable deploys repositories
    """
    _set_enabled(names, False, as_json)


def _set_enabled(names: tuple[str, ...], enabled: bool, as_json: bool) -> None:
    with ledger_connection(f"{'enable' if enabled else 'disable'} adapters") as connection:
        # In the order of their names, so that two such commands never wait for each other.
        changed = [_set_one(connection, name, enabled) for name in sorted(set(names))]
    _show(changed, as_json)


def _set_one(connection: Connection, name: str, enabled: bool) -> AdapterRow:
    try:
        return set_adapter_enabled(connection, name, enabled)
    except NotFound as error:
        hint = nearest(name, [row.name for row in list_adapters(connection)])
        raise NotFound(f"{error}{hint or '; one registers when a worker that has it first starts'}") from error


def _show(found: list[AdapterRow], as_json: bool) -> None:
    rows = [_row(adapter) for adapter in found]
    if not as_json:
        rows = [row | {"trust": _trust(adapter)} for row, adapter in zip(rows, found, strict=True)]
    write_table(rows, _COLUMNS, nothing="no adapters", as_json=as_json)


def _trust(adapter: AdapterRow) -> str:
    """How it knows its senders, for people: what is open, or off, must not be overlooked."""
    if adapter.trust_mode == "open":
        return "OPEN: nobody is verified"
    off = adapter.config.get("off")
    return f"OFF: {off}" if off else adapter.trust_mode


def _row(adapter: AdapterRow) -> dict[str, object]:
    config = adapter.config
    return {
        "name": adapter.name,
        "type": config.get("type"),
        "queue": config.get("queue"),
        "enabled": adapter.enabled,
        "key_prefix": config.get("key_prefix"),
        "family": adapter.family,
        "trust_mode": adapter.trust_mode,
        "config": redacted(config),
        "created_at": adapter.created_at,
        "updated_at": adapter.updated_at,
    }
