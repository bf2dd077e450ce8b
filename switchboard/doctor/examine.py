"""Runs the checks side by side, each bounded in time, and none hidden by another that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from ..errors import SwitchboardError
from ..finding import Finding
from ..redact import safe_text
from .adapters import check_adapter, check_shared_sources
from .configuration import read_configuration
from .postgres import check_postgres
from .remedies import unreachable
from .transport import check_transport

#: Seconds that all of it may take: what has not answered by then is a finding of its own.
PATIENCE = 12.0

Check = Callable[[], Iterable[Finding]]


def examine(patience: float = PATIENCE) -> list[Finding]:
    """Everything that was found, subject by subject; it changes nothing, and raises nothing."""
    adapters, findings = read_configuration()
    findings += check_shared_sources(adapters)
    checks: dict[str, Check] = {
        "PostgreSQL": partial(check_postgres, adapters),
        "Dramatiq's broker": check_transport,
    }
    for adapter in adapters:
        checks[f"adapter {adapter.name}"] = partial(check_adapter, adapter)
    return findings + run(checks, patience)


def run(checks: dict[str, Check], patience: float) -> list[Finding]:
    """What each check found, by its subject and in their order, and what kept it from finding more."""
    running = [(subject, *_start(subject, check)) for subject, check in checks.items()]
    deadline = time.monotonic() + patience
    found: list[Finding] = []
    for subject, thread, findings in running:
        thread.join(max(0.0, deadline - time.monotonic()))
        # A copy: a check that comes back later must not add to what is being shown.
        found += list(findings)
        if thread.is_alive():
            found.append(
                Finding(
                    "reach",
                    subject,
                    "error",
                    f"no answer within {patience:.0f} s",
                    "see whether it is frozen, overloaded or cut off (a firewall that drops packets)",
                )
            )
    return found


def _start(subject: str, check: Check) -> tuple[threading.Thread, list[Finding]]:
    findings: list[Finding] = []
    # A daemon: one that never comes back must not keep the command.
    thread = threading.Thread(target=lambda: _collect(subject, check, findings), name=subject, daemon=True)
    thread.start()
    return thread, findings


def _collect(subject: str, check: Check, findings: list[Finding]) -> None:
    try:
        for finding in check():
            findings.append(finding)
    except SwitchboardError as error:
        findings.append(unreachable(subject, error))
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, and hides no other
        findings.append(
            Finding("doctor", subject, "error", f"the check itself failed: {safe_text(error)}", "report it as a bug")
        )
