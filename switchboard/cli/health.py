"""``switchboard health``: what an orchestrator asks every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from ..telemetry.health import WITHIN, Verdict, judge_live, judge_ready
from ..telemetry.pulse import Report, read_reports
from .output import as_one_line, json_option, write, write_json

within_option = click.option(
    "--within",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=WITHIN,
    show_default=True,
    help="How long ago the last sign of life, or answer, may be.",
)


@click.group()
def health() -> None:
    """Say whether workers live, are ready, and upkeep is done.

    Exit status 0 is yes, 1 no. live and ready read what each worker process of this host writes about itself, in
    SWITCHBOARD_STATE_DIR, every second: no server is asked, and the answer takes a moment. upkeep asks the ledger.

    \b
    Examples:
      switchboard health live
      switchboard health ready --within 30
    """


@health.command()
@within_option
@json_option
def live(within: float, as_json: bool) -> None:
    """Say whether every worker process of this host shows signs of life.

    Each consumer of it has to come round, too. Where it is not so a restart helps. An outage of PostgreSQL or of a
    broker does not change it: the worker waits for them by itself.

    \b
    Examples:
      switchboard health live
    """
    _answer("live", judge_live, within, as_json)


@health.command()
@within_option
@json_option
def ready(within: float, as_json: bool) -> None:
    """Say whether the workers live, and their servers answer them.

    The ledger, and the source of each adapter. A worker whose hands are full is ready; an adapter that is disabled
    does not count.

    \b
    Examples:
      switchboard health ready --within 30
    """
    _answer("ready", judge_ready, within, as_json)


@health.command()
@json_option
def upkeep(as_json: bool) -> None:
    """Say whether upkeep is done in time.

    The scheduler sends it, and a worker does it.

    \b
    Examples:
      switchboard health upkeep
    """
    # The ledger's client takes longer to import than all of the commands above.
    from ..doctor.upkeep import judge_upkeep
    from .database import ledger_connection

    with ledger_connection("look at upkeep") as connection:
        _show("upkeep", judge_upkeep(connection), as_json)


def _answer(
    what: str, judge: Callable[[Sequence[Report], float, float], Verdict], within: float, as_json: bool
) -> None:
    reports = read_reports()
    _show(what, judge(reports, time.monotonic(), within), as_json)


def _show(what: str, verdict: Verdict, as_json: bool) -> None:
    if as_json:
        write_json([{"health": what, "ok": verdict.ok, "why": verdict.why}])
    else:
        write(as_one_line(f"{what}: {'yes' if verdict.ok else 'no'}: {verdict.why}") + "\n")
    if not verdict.ok:
        click.get_current_context().exit(1)
