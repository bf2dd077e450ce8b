"""What a look at something found: a line for people, with what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "error"]


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
