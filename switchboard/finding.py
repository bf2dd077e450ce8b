"""What a look at something found: a line for people, with what to do; and what is found alike at every server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "error"]

#: Seconds that two clocks may differ: leases and idle times are of that order at their shortest.
CLOCK_TOLERANCE = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` is the name of what was looked for (``schema``), ``subject`` where (``PostgreSQL``).

    An ``error`` keeps something from working, or loses what it should keep; a ``warning`` may come to that. ``what``
    and ``remedy`` are a sentence each, free of credentials; only what is ok has no remedy.
    """

    check: str
    subject: str
    severity: Severity
    what: str
    remedy: str = ""


def clock_finding(subject: str, there: float, began: float, ended: float) -> Finding:
    """Whether a server's clock, read between two of this host's seconds, agrees with it."""
    ahead = there - ended if there > ended else min(0.0, there - began)
    if abs(ahead) <= CLOCK_TOLERANCE:
        return Finding("clock", subject, "ok", "its clock agrees with this host's")
    return Finding(
        "clock", subject, "warning",
        f"its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's",
        "let both follow NTP (chrony): ages and waits across hosts are wrong by as much",
    )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this host."""
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
