"""``switchboard demo``: the command and what it shows; what happens is ``switchboard.demo``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Self

import click

from ..demo.run import Audience, Progress, Result, broker_url, play
from ..demo.servers import Servers
from ..demo.signals import exit_on_signals
from ..errors import SwitchboardError
from .output import json_option, write, write_json

#: Seconds between two lines where nobody watches a terminal.
LINE_SECONDS = 2.0


@click.command()
@click.option("--messages", type=click.IntRange(min=1), default=20_000, show_default=True, help="How many to publish.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed publishes the same messages.")
@click.option("--keep", is_flag=True, help="Leave both servers running, and say how to reach and to end them.")
@json_option
def demo(messages: int, seed: int, keep: bool, as_json: bool) -> None:
    """See it work: every message becomes exactly one todo, though a worker is killed midway.

    Starts PostgreSQL and Valkey in a temporary folder (it needs the extra `embedded`) and a real
    `dramatiq switchboard.actors`, publishes deliveries on two Redis streams, kills one of the worker's
    processes with SIGKILL, starts the worker again as a supervisor would, and compares what was published
    with what is stored. Exit status 0 only if every message became exactly one todo.

    \b
    Examples:
      switchboard demo
      switchboard demo --messages 100000 --keep
    """
    _forget_other_servers()
    with exit_on_signals():
        sys.exit(_run(messages, seed, keep, as_json))


def _run(count: int, seed: int, keep: bool, as_json: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="switchboard-demo-"))
    failed = kept = False
    try:
        with Servers(folder) as servers, _audience(count, as_json) as audience:
            audience.say("starting PostgreSQL and Valkey")
            try:
                servers.start()
                result = play(servers, folder, count=count, seed=seed, audience=audience)
                failed = bool(result.problems)
            except Exception:
                failed = True
                raise
            finally:
                kept = keep and bool(servers.database_url)
                if kept:
                    servers.keep()
    except SwitchboardError as error:
        click.echo(f"switchboard: {error}{_where(folder)}", err=True)
        result = None
    finally:
        if not kept and not (failed and _log(folder).exists()):
            shutil.rmtree(folder, ignore_errors=True)
    if result is not None:
        _show(result, as_json)
        for problem in result.problems:
            click.echo(f"switchboard: {problem}", err=True)
        if failed:
            click.echo(f"switchboard: the demo failed{_where(folder)}", err=True)
    if kept:
        click.echo(_KEPT.format(servers=servers, broker_url=broker_url(servers), folder=folder), err=as_json)
    return 1 if failed else 0


def _forget_other_servers() -> None:
    # PGHOSTADDR, PGOPTIONS and their like would lead every connection of ours to somebody else's server.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def _log(folder: Path) -> Path:
    return folder / "worker.log"


def _where(folder: Path) -> str:
    return f"; the worker's log is {_log(folder)}" if _log(folder).exists() else ""


# Watching


@contextmanager
def _audience(count: int, as_json: bool) -> Iterator[Audience]:
    if as_json or not sys.stdout.isatty():
        yield _Lines()
    else:
        with _Screen(count) as screen:
            yield screen


class _Lines:
    """Plain lines on standard error, one now and then."""

    def __init__(self) -> None:
        self._next = 0.0

    def progress(self, progress: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            self.say(
                f"{progress.published:,} published, {progress.stored:,} stored, {progress.pending:,} pending, "
                f"{progress.rate:,.0f} a second"
            )

    def say(self, line: str) -> None:
        click.echo(f"demo: {line}", err=True)


class _Screen:
    """Two bars on the terminal, and above them what happened."""

    def __init__(self, count: int) -> None:
        # rich takes as long to import as a listing takes in all, and every command imports this file.
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description:>9}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
        )
        self._published = self._bars.add_task("published", total=count, more="")
        self._stored = self._bars.add_task("stored", total=count, more="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def progress(self, progress: Progress) -> None:
        more = f"{progress.pending:,} pending, {progress.rate:,.0f}/s"
        self._bars.update(self._published, completed=progress.published)
        self._bars.update(self._stored, completed=progress.stored, more=more)

    def say(self, line: str) -> None:
        self._bars.console.print(line, markup=False)


# The end


def _show(result: Result, as_json: bool) -> None:
    row = {name: value for name, value in asdict(result).items() if name != "problems"}
    if as_json:
        write_json([row])
        return
    from rich.console import Console
    from rich.table import Table

    verdict = "not every message is exactly one todo" if result.problems else "every message is exactly one todo"
    table = Table(show_header=False, title=verdict, min_width=len(verdict))
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in row.items():
        table.add_row(name, f"{value:,}{_UNITS.get(name, '')}")
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
    write(capture.get())


_UNITS = {"seconds": " s", "rate": " todos/s", "peak": " todos/s"}


_KEPT = """
The servers go on, PostgreSQL as process {servers.postgres_pid} and Valkey as process {servers.valkey_pid}:

  export DATABASE_URL={servers.database_url}
  export DEMO_REDIS_URL={servers.redis_url}
  export SWITCHBOARD_BROKER_URL={broker_url}
  export SWITCHBOARD_CONFIG={folder}/switchboard.toml

  switchboard todos list
  psql "$DATABASE_URL" -c 'SELECT queue, state, count(*) FROM todos GROUP BY 1, 2'
  redis-cli -u "$DEMO_REDIS_URL" XINFO GROUPS deploys
  dramatiq switchboard.actors

To end both and remove {folder}, where the worker's log is too:

  kill {servers.keeper_pid}
"""
