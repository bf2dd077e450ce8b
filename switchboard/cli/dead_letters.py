"""``switchboard dead-letters``: what could not become a todo."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import get_args

import click

from ..errors import Conflict
from ..ledger import (
    Connection,
    DeadLetterBody,
    DeadLetterRow,
    get_dead_letter,
    list_dead_letters,
    resolve_dead_letter,
)
from ..model import DeadLetterReason
from ..redact import redact, redact_headers
from ..replay import replay
from .database import ledger_connection
from .options import before_option, ids_argument, limit_option, some_ids_argument
from .output import as_row, json_option, write_records, write_table
from .settle import SELECTED_PAGE, selected, settle

#: Characters of a body that a person is shown; ``--body`` writes all of it.
LONGEST_BODY = 4000

adapter_option = click.option("--adapter", metavar="NAME", help="Only dead letters of this adapter.")
reason_option = click.option("--reason", type=click.Choice(get_args(DeadLetterReason)), help="Only with this reason.")

_COLUMNS = ("id", "adapter", "reason", "received_at", "payload_size", "detail")


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at the deliveries that could not become a todo, and settle them.

    \b
    Examples:
      switchboard dead-letters list
      switchboard dead-letters show 3
      switchboard dead-letters replay --adapter deploys --reason invalid
    """


@dead_letters.command("list")
@adapter_option
@reason_option
@click.option("--all", "resolved", is_flag=True, help="Those replayed or discarded, too.")
@limit_option
@before_option
@json_option
def list_(
    adapter: str | None,
    reason: DeadLetterReason | None,
    resolved: bool,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List the newest dead letters.

    \b
    Examples:
      switchboard dead-letters list --adapter deploys
      switchboard dead-letters list --all --json
    """
    with ledger_connection("list dead letters") as connection:
        found = list_dead_letters(
            connection, adapter=adapter, reason=reason, resolved=resolved, before=before, limit=limit
        )
    rows = [_about(letter) for letter in found]
    write_table(rows, _COLUMNS, nothing="no dead letters", as_json=as_json, free_text=("detail",))


@dead_letters.command()
@ids_argument
@click.option("--body", is_flag=True, help="Write the exact bytes of the one dead letter's body, and nothing else.")
@json_option
def show(ids: tuple[int, ...], body: bool, as_json: bool) -> None:
    """Show dead letters with everything they have.

    With --json, payload_base64 is a body's exact bytes, payload the same as text, or null where they are not UTF-8.

    \b
    Examples:
      switchboard dead-letters show 3
      switchboard dead-letters show 3 4 --json
      switchboard dead-letters show 3 --body > body.bin
    """
    if body and as_json:
        raise click.UsageError("--body and --json exclude each other: --json has the bytes as payload_base64")
    if body and len(ids) > 1:
        raise click.UsageError("--body takes one ID: the bytes of several could not be told apart")
    with ledger_connection("show dead letters") as connection:
        found = [get_dead_letter(connection, letter_id) for letter_id in ids]
    if body:
        click.echo(found[0].payload, nl=False)
    else:
        rows = [_row(letter) if as_json else _shown(letter) for letter in found]
        write_records(rows, title="dead letter", as_json=as_json)


@dead_letters.command("replay")
@some_ids_argument
@adapter_option
@reason_option
@json_option
def replay_(ids: tuple[int, ...], adapter: str | None, reason: DeadLetterReason | None, as_json: bool) -> None:
    """Put dead letters through the back half again, as their adapters' messages are.

    Those with these IDs, or all that --adapter and --reason select. Each is stored and marked in a transaction of its
    own; one that was resolved before is left alone. Mend its cause first: the provider's function, or max_body, which
    counts once a worker (of a webhook: `switchboard serve`) has started with it.

    \b
    Examples:
      switchboard dead-letters replay 3 4
      switchboard dead-letters replay --adapter deploys --reason invalid
    """
    _settle("replay", ids, adapter, reason, _replay_one, as_json)


@dead_letters.command()
@some_ids_argument
@adapter_option
@reason_option
@json_option
def discard(ids: tuple[int, ...], adapter: str | None, reason: DeadLetterReason | None, as_json: bool) -> None:
    """Mark dead letters as resolved without making todos of them; their rows stay.

    Those with these IDs, or all that --adapter and --reason select.

    \b
    Examples:
      switchboard dead-letters discard 3 4
      switchboard dead-letters discard --adapter deploys --reason too_large
    """
    _settle("discard", ids, adapter, reason, _discard_one, as_json)


def _replay_one(connection: Connection, letter_id: int) -> str:
    return "replayed" if replay(connection, letter_id) else "already resolved"


def _discard_one(connection: Connection, letter_id: int) -> str:
    try:
        resolve_dead_letter(connection, letter_id, "discarded")
    except Conflict:
        return "already resolved"
    return "discarded"


def _settle(
    doing: str,
    ids: tuple[int, ...],
    adapter: str | None,
    reason: DeadLetterReason | None,
    settle_one: Callable[[Connection, int], str],
    as_json: bool,
) -> None:
    if bool(ids) == bool(adapter or reason):
        raise click.UsageError("give the IDs, or select with --adapter and --reason")

    def page(connection: Connection, before: int | None) -> list[int]:
        found = list_dead_letters(connection, adapter=adapter, reason=reason, before=before, limit=SELECTED_PAGE)
        return [letter.id for letter in found]

    settle(doing, "dead letter", lambda ledger: ids or selected(ledger, "list dead letters", page), settle_one, as_json)


def _row(letter: DeadLetterBody) -> dict[str, object]:
    return _about(letter) | {
        "payload": _text(letter.payload),
        "payload_base64": b64encode(letter.payload).decode("ascii"),
    }


def _shown(letter: DeadLetterBody) -> dict[str, object]:
    text = _text(letter.payload)
    if text is None:
        text = "not text; --body writes it"
    elif len(text) > LONGEST_BODY:
        text = f"{text[:LONGEST_BODY]}… (cut; --body writes it whole)"
    return _about(letter) | {"payload": text}


def _about(letter: DeadLetterRow) -> dict[str, object]:
    row = as_row(letter)
    row.pop("payload", None)
    return row | {
        "detail": redact(letter.detail),
        "verify_detail": redact(letter.verify_detail),
        "headers": redact_headers(letter.headers),
    }


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
