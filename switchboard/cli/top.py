"""``switchboard top``: adapters, todos and upkeep at a glance, kept up to date in the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from ..config import load_upkeep
from ..doctor.upkeep import Job, jobs
from ..errors import LedgerError
from ..ledger import Connection, Ledger, count_todos, list_adapters, list_consumers
from ..ledger.measures import done_per_second, stored_per_second
from ..pull import PullAdapter
from .adapters import COLUMNS, adapter_rows, shown
from .database import open_ledger
from .output import Row, as_one_line, json_option, printable, write, write_json
from .sources import ask_lags, readable_adapters

if TYPE_CHECKING:
    from rich.console import RenderableType

#: What the page shows of each; JSON has all of it.
_ADAPTERS = (*(name for name in COLUMNS if name not in ("type", "last_error")), "stored_per_second", "last_error")
_TODOS = ("queue", "pending", "claimed", "failed", "oldest_pending_seconds", "done_per_second")
_UPKEEP = ("job", "last_success_seconds", "overdue")

#: How long the ledger may take for a page.
LOOK_TIMEOUT = timedelta(seconds=10)

Page = dict[str, object]


@click.command()
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(min=0.2), default=2.0, show_default=True,
    help="How often to look.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print one page and end; so it is where there is no terminal.")
@json_option
def top(interval: float, once: bool, as_json: bool) -> None:
    """Watch adapters, todos and upkeep.

    q ends it. Rates are those of the last ten seconds. What is not known, as a broker does not answer, is "?". With
    --json one page is written, as an array of one object with the keys at, adapters, todos and upkeep.

    \b
    Examples:
      switchboard top
      switchboard top --interval 10
      switchboard top --once --json
    """
    sources = readable_adapters()
    try:
        with open_ledger() as ledger:
            if as_json:
                write_json([_look(ledger, sources)])
            elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
                write(_printed(_look(ledger, sources)))
            else:
                # Whoever looks has seen enough.
                with contextlib.suppress(KeyboardInterrupt):
                    _watch(ledger, sources, interval)
    finally:
        for source in sources:
            source.close()


def _look(ledger: Ledger, sources: Sequence[PullAdapter]) -> Page:
    lags, schedules = ask_lags(sources), load_upkeep()
    with ledger.transaction(timeout=LOOK_TIMEOUT, doing="look") as transaction:
        connection = transaction.connection
        adapters = list_adapters(connection)
        rows = adapter_rows(adapters, list_consumers(connection), lags)
        stored = stored_per_second(connection, [adapter.name for adapter in adapters])
        return {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "adapters": [
                _plain({name: row[name] for name in (*_ADAPTERS, "family") if name in row})
                | {"stored_per_second": stored.get(str(row["name"]))}
                for row in rows
            ],
            "todos": _todos(connection),
            "upkeep": [_upkeep(job) for job in jobs(connection, schedules)],
        }


def _plain(row: Row) -> dict[str, object]:
    """The row with its times as text: the page is one JSON value."""
    return {
        name: value.astimezone(UTC).isoformat(timespec="seconds") if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _todos(connection: Connection) -> list[dict[str, object]]:
    queues: dict[str, dict[str, object]] = {}

    def of(queue: str) -> dict[str, object]:
        nothing: dict[str, object] = {"pending": 0, "claimed": 0, "failed": 0, "oldest_pending_seconds": None}
        return queues.setdefault(queue, {"queue": queue, **nothing, "done_per_second": 0.0})

    # Done ones are not counted: that would read the whole table, every time.
    for state in ("pending", "claimed", "failed"):
        for counted in count_todos(connection, state):
            of(counted.queue)[state] = counted.count
            if counted.oldest_age_seconds is not None:
                of(counted.queue)["oldest_pending_seconds"] = round(counted.oldest_age_seconds, 1)
    for queue, rate in done_per_second(connection).items():
        of(queue)["done_per_second"] = rate
    return [queues[name] for name in sorted(queues)]


def _upkeep(job: Job) -> dict[str, object]:
    ago = job.seconds_ago
    return {"job": job.name, "last_success_seconds": None if ago is None else round(ago), "overdue": job.overdue}


# On paper and in the terminal


def _rendered(page: Page) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"switchboard top  {page['at']}", style="bold")]
    for title, columns in (("adapters", _ADAPTERS), ("todos", _TODOS), ("upkeep", _UPKEEP)):
        rows = page[title]
        if isinstance(rows, list):
            if title == "adapters":
                rows = [_short(shown(row)) for row in rows]
            parts += [Text(f"\n{title}", style="bold"), _table(rows, columns) if rows else Text("none")]
    return Group(*parts)


def _short(row: Row) -> Row:
    """The row with the time of day of its last poll: a page is of today."""
    polled = row["last_poll"]
    return dict(row) | {"last_poll": str(polled)[11:19] if polled else None}


def _table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        # What a row is about is shown whole, however narrow the terminal.
        longest = max(len(_cell(row[name])) for row in rows) if name == columns[0] else None
        title = name.replace("_per_second", "/s").replace("_", " ")
        table.add_column(title, overflow="ellipsis", no_wrap=True, min_width=longest)
    for row in rows:
        style = "red" if row.get("overdue") else "dim" if row.get("enabled") is False else ""
        table.add_row(*(Text(_cell(row[name]), style=style) for name in columns))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(str(value))


def _printed(page: Page) -> str:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as capture:
        console.print(_rendered(page))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _watch(ledger: Ledger, sources: Sequence[PullAdapter], interval: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    page: RenderableType = Text("")
    with _keys(), Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            try:
                page = shown = _rendered(_look(ledger, sources))
            except LedgerError as error:
                # The page before it stays, and it is tried again.
                shown = Group(Text(as_one_line(str(error)), style="red"), page)
            live.update(shown, refresh=True)
            if _ended(interval):
                return


def _ended(interval: float) -> bool:
    """Whether q, or the end of input, comes before the time is over."""
    deadline = time.monotonic() + interval
    while select.select([sys.stdin], [], [], max(0.0, deadline - time.monotonic()))[0]:
        # Not sys.stdin's: what that has read ahead no select tells of.
        pressed = os.read(sys.stdin.fileno(), 1024)
        if not pressed or b"q" in pressed.lower():
            return True
    return False


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Each key is read as it is pressed, and is not shown."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
