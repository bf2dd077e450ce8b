"""Whether upkeep is done: periodiq sends it, a worker does it, and nobody notices by itself when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from ..finding import Finding
from ..health import Verdict
from ..ledger import Connection
from ..ledger.inspection import upkeep_age

SUBJECT = "upkeep"

#: How long ago each job may have been done: some of its periods, and a pass that takes its time.
OVERDUE = {"prune": timedelta(hours=2, minutes=15), "reap": timedelta(minutes=5)}


def check_upkeep(connection: Connection) -> Iterator[Finding]:
    """For each job whether it was done in time; a new database has as long for the first."""
    for job, longest in OVERDUE.items():
        done, migrated = upkeep_age(connection, job)
        since = migrated if done is None else done
        ago = "has never been done" if done is None else f"was last done {timedelta(seconds=int(done))} ago"
        if since > longest.total_seconds():
            yield Finding(
                "upkeep", SUBJECT, "error", f"{job} is overdue: it {ago}",
                "run one scheduler, `periodiq switchboard.actors`, and a worker that works queue switchboard.upkeep; "
                f"`switchboard {job}` does it now",
            )  # fmt: skip
        else:
            yield Finding("upkeep", SUBJECT, "ok", f"{job} {ago}")


def judge_upkeep(connection: Connection) -> Verdict:
    """The same as one answer."""
    findings = list(check_upkeep(connection))
    overdue = [finding.what for finding in findings if finding.severity == "error"]
    return Verdict(not overdue, "; ".join(overdue or [finding.what for finding in findings]))
