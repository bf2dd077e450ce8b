"""What the commands print: tables and records for people, one JSON array for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

import click

from ..model import RawJson
from ..redact import redact

#: Characters of free text (a title, a detail) that a table shows where no terminal's width decides.
LONGEST_TEXT = 72

Row = Mapping[str, object]

json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON array and nothing else.")


def as_row(record: object) -> dict[str, object]:
    """A table's row from the ledger's dataclass, keys as the columns are named."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]


def redacted(value: object) -> object:
    """The JSON value with what looks like a credential masked in each of its texts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return value


def as_one_line(text: str) -> str:
    """The text on one line, fit for a terminal, credentials masked."""
    return printable(" ".join(redact(text).split()))


def printable(text: str) -> str:
    """The text without what would steer a terminal: a title may come from anyone who can send a message."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text.replace("\t", "    "))


def write(text: str) -> None:
    """Writes to standard output, which may know fewer characters than a title has."""
    click.echo(text.encode(sys.stdout.encoding or "utf-8", "replace"), nl=False)


def write_json(rows: Sequence[Row]) -> None:
    """The rows as one JSON array in UTF-8, a row a line."""
    lines = ",\n".join(f"  {_json_object(row)}" for row in rows)
    click.echo((f"[\n{lines}\n]" if rows else "[]").encode())


def write_table(
    rows: Sequence[Row], columns: Sequence[str], *, nothing: str, as_json: bool, free_text: Collection[str] = ()
) -> None:
    """A listing: these columns for people, every one with ``as_json``; ``nothing`` is said of an empty one."""
    if as_json:
        write_json(rows)
    elif not rows:
        write(f"{nothing}\n")
    else:
        write(_table(rows, columns, free_text))


def write_records(rows: Sequence[Row], *, title: str, as_json: bool) -> None:
    """Each row whole, a line a column that has a value."""
    if as_json:
        write_json(rows)
        return
    for index, row in enumerate(rows):
        pairs = {name: _cell(value) for name, value in row.items() if value is not None and value != ""}
        if sys.stdout.isatty():
            write(_panel(pairs, f"{title} {row['id']}"))
        else:
            write("\n" * (index > 0) + "".join(f"{name}: {value}\n" for name, value in pairs.items()))


def _json_object(row: Row) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {_json_value(value)}" for name, value in row.items()) + "}"


def _json_value(value: object) -> str:
    if isinstance(value, RawJson):
        return value
    if isinstance(value, datetime):
        value = value.astimezone(UTC).isoformat()
    return json.dumps(value, ensure_ascii=False)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, (dict, list)):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


def _table(rows: Sequence[Row], columns: Sequence[str], free_text: Collection[str]) -> str:
    # rich takes as long to import as all of a listing: who asks for JSON does not pay for it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    # Nothing is cut for a terminal's sake where there is none.
    console = Console(width=None if terminal else 10_000, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        # A column that may wrap is the first that rich narrows; its text, which may not, is then cut.
        table.add_column(name, no_wrap=name not in free_text, overflow="ellipsis" if name in free_text else "fold")
    for row in rows:
        table.add_row(
            *(
                Text(_short(_cell(row[name])), no_wrap=True, overflow="ellipsis")
                if name in free_text
                else Text(_cell(row[name]).replace("\n", " "))
                for name in columns
            )
        )
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _panel(pairs: Mapping[str, str], title: str) -> str:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs.items():
        grid.add_row(name, Text(value))
    with console.capture() as capture:
        console.print(Panel(grid, title=title, title_align="left"))
    return capture.get()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
