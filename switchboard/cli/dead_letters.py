"""``switchboard dead-letters``: what could not become a todo."""

from __future__ import annotations

from base64 import b64encode

import click

from ..ledger import DeadLetterBody, DeadLetterRow, get_dead_letter, list_dead_letters
from ..redact import redact, redact_headers
from .database import ledger_connection
from .options import before_option, ids_argument, limit_option
from .output import as_row, json_option, write_records, write_table

#: Characters of a body that a person is shown; ``--body`` writes all of it.
LONGEST_BODY = 4000

_COLUMNS = ("id", "adapter", "reason", "received_at", "payload_size", "detail")


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at the deliveries that could not become a todo.

    \b
    Examples:
      switchboard dead-letters list
      switchboard dead-letters show 3
    """


@dead_letters.command("list")
@click.option("--adapter", metavar="NAME", help="Only dead letters of this adapter.")
@click.option("--all", "resolved", is_flag=True, help="Those replayed or discarded, too.")
@limit_option
@before_option
@json_option
def list_(adapter: str | None, resolved: bool, limit: int, before: int | None, as_json: bool) -> None:
    """List the newest dead letters.

    \b
    Examples:
      switchboard dead-letters list --adapter deploys
      switchboard dead-letters list --all --json
    """
    with ledger_connection("list dead letters") as connection:
        found = list_dead_letters(connection, adapter=adapter, resolved=resolved, before=before, limit=limit)
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
