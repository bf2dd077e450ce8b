"""The environment and ``switchboard.toml``: what is missing there, and what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

from ..config import DEFAULT_CONFIG, load_each
from ..errors import ConfigError
from ..finding import Finding
from ..pull import PullAdapter

SUBJECT = "configuration"


def read_configuration() -> tuple[list[PullAdapter], list[Finding]]:
    """The adapters that can be read, and what is wrong with the others and with the file."""
    where = os.environ.get("SWITCHBOARD_CONFIG", "").strip() or DEFAULT_CONFIG
    try:
        each = load_each()
    except ConfigError as error:
        return [], [_wrong(error)]
    adapters = [item for item in each if isinstance(item, PullAdapter)]
    findings = [_wrong(item) for item in each if isinstance(item, ConfigError)]
    if not each:
        what = f"{where} names no adapter" if Path(where).is_file() else f"there is no {where} here"
        findings.append(
            Finding(
                "configuration",
                SUBJECT,
                "warning",
                what,
                "run this where the workers run, or set SWITCHBOARD_CONFIG; adapters added in code are not seen here",
            )
        )
    elif not findings:
        findings.append(Finding("configuration", SUBJECT, "ok", f"{where}: adapters {len(adapters)}"))
    return adapters, findings


def _wrong(error: ConfigError) -> Finding:
    what = str(error)
    if "environment variable" in what and "is not set" in what:
        remedy = "set it, in the environment of every process that runs Switchboard"
    elif "literal password" in what:
        remedy = "put the password into the environment"
    else:
        remedy = "correct it in the file (switchboard.example.toml shows every key)"
    return Finding("configuration", SUBJECT, "error", what, remedy)
