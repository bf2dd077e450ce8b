"""Whether upkeep is done: periodiq sends it, a worker does it, and nobody notices by itself when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ..config import load_upkeep
from ..finding import Finding
from ..ledger import Connection, list_upkeep, migrated_seconds_ago
from ..schedules import UpkeepOptions, longest_silence
from ..telemetry.health import Verdict

SUBJECT = "upkeep"


@dataclass(frozen=True, slots=True)
class Job:
    """A job of upkeep: how long ago it was done, None where it never was, and whether it should have been since."""

    name: str
    seconds_ago: float | None
    overdue: bool


def jobs(connection: Connection, options: UpkeepOptions) -> list[Job]:
    """Every job, judged by its schedule; a new database has as long for the first."""
    done = {row.job: row.seconds_ago for row in list_upkeep(connection)}
    migrated = migrated_seconds_ago(connection)
    return [
        Job(name, done.get(name), done.get(name, migrated) > longest_silence(expression).total_seconds())
        for name, expression in options
    ]


def check_upkeep(connection: Connection) -> Iterator[Finding]:
    """For each job whether it was done in time."""
    for job in jobs(connection, load_upkeep()):
        done = job.seconds_ago
        ago = "has never been done" if done is None else f"was last done {timedelta(seconds=int(done))} ago"
        if job.overdue:
            yield Finding(
                "upkeep", SUBJECT, "error", f"{job.name} is overdue: it {ago}",
                "run one scheduler, `periodiq switchboard.actors`, and a worker that works queue switchboard.upkeep; "
                f"`switchboard {job.name}` does it now",
            )  # fmt: skip
        else:
            yield Finding("upkeep", SUBJECT, "ok", f"{job.name} {ago}")


def judge_upkeep(connection: Connection) -> Verdict:
    """The same as one answer."""
    findings = list(check_upkeep(connection))
    overdue = [finding.what for finding in findings if finding.severity == "error"]
    return Verdict(not overdue, "; ".join(overdue or [finding.what for finding in findings]))
