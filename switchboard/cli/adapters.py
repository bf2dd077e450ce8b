"""``switchboard adapters``: who feeds the ledger, and whether it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from ..errors import NotFound
from ..ledger import AdapterRow, Connection, ConsumerRow, list_adapters, list_consumers, set_adapter_enabled
from ..pull import Lag
from .database import ledger_connection
from .options import nearest
from .output import Row, json_option, redacted, write_table
from .sources import ask_lags, readable_adapters

#: What a listing shows, and what a change does.
COLUMNS = ("name", "type", "queue", "enabled", "trust", "lag", "pending", "consumers", "last_poll", "last_error")
_CHANGED = ("name", "type", "queue", "enabled", "trust", "key_prefix")


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
    """List the adapters: what waits, who reads, and the last poll.

    By name. An adapter is listed from the first start of a worker that has it. Its lag, what nobody has read, and
    what is pending, read and not acknowledged, are asked of the broker that the configuration names here: "?" where
    it does not answer within seconds, or does not know. Consumers are the running worker processes that read it.

    \b
    Examples:
      switchboard adapters list
      switchboard adapters list --json
    """
    with ledger_connection("list adapters") as connection:
        found, consumers = list_adapters(connection), list_consumers(connection)
    sources = readable_adapters()
    try:
        rows = adapter_rows(found, consumers, ask_lags(sources))
    finally:
        for source in sources:
            source.close()
    if not as_json:
        rows = [shown(row) for row in rows]
    write_table(rows, COLUMNS, nothing="no adapters", as_json=as_json, free_text=("last_error",))


def adapter_rows(
    adapters: Sequence[AdapterRow], consumers: Sequence[ConsumerRow], lags: Mapping[str, Lag]
) -> list[Row]:
    """A row an adapter, with all that is known of it: ``lag`` and ``pending`` are None where its source is silent."""
    rows: list[Row] = []
    for adapter in adapters:
        its = [consumer for consumer in consumers if consumer.adapter == adapter.name]
        errors = [(consumer.last_error_at, consumer.last_error) for consumer in its if consumer.last_error_at]
        lag = lags.get(adapter.name)
        activity = {
            "lag": lag.unread if lag else None,
            "pending": lag.pending if lag else None,
            "consumers": sum(consumer.is_there and not consumer.standby for consumer in its),
            "last_poll": max((consumer.polled_at for consumer in its if consumer.polled_at), default=None),
            "last_error": max(errors)[1] if errors else None,
            "last_error_at": max(errors)[0] if errors else None,
        }
        rows.append(_row(adapter) | activity)
    return rows


def shown(row: Row) -> Row:
    """The row as people see it: what is not known is marked. Nothing waits where a sender pushes."""
    unknown = "?" if row["family"] == "queue" else "-"
    return dict(row) | {name: unknown if row[name] is None else row[name] for name in ("lag", "pending")}


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
    rows = [_row(adapter) for adapter in changed]
    write_table(rows, _CHANGED, nothing="no adapters", as_json=as_json)


def _set_one(connection: Connection, name: str, enabled: bool) -> AdapterRow:
    try:
        return set_adapter_enabled(connection, name, enabled)
    except NotFound as error:
        hint = nearest(name, [row.name for row in list_adapters(connection)])
        raise NotFound(f"{error}{hint or '; one registers when a worker that has it first starts'}") from error


def _trust(adapter: AdapterRow) -> str:
    """How it knows its senders: what is open, or off, must not be overlooked."""
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
        "trust": _trust(adapter),
        "key_prefix": config.get("key_prefix"),
        "family": adapter.family,
        "trust_mode": adapter.trust_mode,
        "config": redacted(config),
        "created_at": adapter.created_at,
        "updated_at": adapter.updated_at,
    }
