"""Whether the workers of this host are alive, and whether they can do their work: judged by each one's own pulse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .pulse import Beat, Report

#: Seconds within which a pulse, a source and the ledger must have been heard of.
WITHIN = 15.0

#: Seconds within which a consumer's thread comes round: whatever a server does, each wait of it ends before.
LONGEST_LOOP = 120.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it is so, and in one line why, or why not."""

    ok: bool
    why: str


def judge_live(reports: Sequence[Report], now: float, within: float = WITHIN) -> Verdict:
    """Live: there is a worker process, each one's pulse is fresh, and each of its consumers comes round.

    ``now`` is a monotonic second; ``within`` is how old a pulse may be, in seconds.
    """
    return _verdict(reports, list(_stuck(reports, now, within)))


def judge_ready(reports: Sequence[Report], now: float, within: float = WITHIN) -> Verdict:
    """Ready: live, and within ``within`` seconds each process had an answer from the ledger, and each consumer one from
    what it reads, or a good reason not to ask: its hands are full, its adapter is switched off, or
    another process reads an exclusive source.
    """
    return _verdict(reports, [*_stuck(reports, now, within), *_unanswered(reports, now, within)])


def _verdict(reports: Sequence[Report], problems: list[str]) -> Verdict:
    if not reports:
        return Verdict(False, "no worker process runs here")
    if problems:
        return Verdict(False, "; ".join(problems))
    consumers = [beat for report in reports for beat in report.consumers]
    return Verdict(True, f"worker processes: {len(reports)}, consumers: {len(consumers)}{_excuses(consumers)}")


def _excuses(consumers: Sequence[Beat]) -> str:
    excused = sorted(
        {f"{beat.queue} is {beat.excuse}" for beat in consumers if (beat.excused_at or 0) > (beat.answered_at or 0)}
    )
    return f" ({', '.join(excused)})" if excused else ""


def _stuck(reports: Sequence[Report], now: float, within: float) -> Iterator[str]:
    for report in reports:
        silent = now - report.at
        if silent > within:
            yield f"worker process {report.pid} has been silent for {silent:.0f} s: it is stopped, or stuck"
            continue
        for beat in report.consumers:
            still = report.at - beat.looped_at
            if still > LONGEST_LOOP:
                yield f"{beat.queue} in process {report.pid} has not come round for {still:.0f} s: its thread is stuck"


def _unanswered(reports: Sequence[Report], now: float, within: float) -> Iterator[str]:
    for report in reports:
        if report.stopping:
            yield f"process {report.pid} is stopping"
            continue
        if report.consumers and _too_old(report.ledger_at, now, within):
            yield f"the ledger {_since(report.ledger_at, now)} to process {report.pid}"
        for beat in report.consumers:
            if beat.storing_since is not None and _too_old(beat.storing_since, now, within):
                storing = now - beat.storing_since
                yield f"{beat.queue} in process {report.pid} has been storing one batch for {storing:.0f} s"
            heard = max((at for at in (beat.answered_at, beat.excused_at) if at is not None), default=None)
            if _too_old(heard, now, within):
                whom = "source" if beat.queue.startswith("adapter.") else "ledger"
                yield f"{beat.queue}: the {whom} {_since(beat.answered_at, now)} to process {report.pid}"


def _too_old(at: float | None, now: float, within: float) -> bool:
    return at is None or now - at > within


def _since(at: float | None, now: float) -> str:
    return "has not answered yet" if at is None else f"has not answered for {now - at:.0f} s"
