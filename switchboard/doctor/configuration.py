"""The environment and ``switchboard.toml``: what is missing there, and what cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..config import DEFAULT_CONFIG, load_each, load_upkeep, load_web, unset_variables
from ..errors import ConfigError
from ..finding import Finding
from ..pull import PullAdapter
from ..push import PushAdapter

SUBJECT = "configuration"


def read_configuration() -> tuple[list[PullAdapter], list[Finding]]:
    """The pull adapters that can be read, and what is wrong with the others, with the webhooks and with the file."""
    where = os.environ.get("SWITCHBOARD_CONFIG", "").strip() or DEFAULT_CONFIG
    try:
        each = load_each()
    except ConfigError as error:
        return [], [_wrong(error)]
    wrong = [item for item in each if isinstance(item, ConfigError)] + list(_wrong_options())
    findings = [_wrong(error) for error in wrong]
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
        findings.append(Finding("configuration", SUBJECT, "ok", f"{where}: adapters {len(each)}"))
    findings += [finding for item in each if isinstance(item, PushAdapter) for finding in _trust(item)]
    return [item for item in each if isinstance(item, PullAdapter)], findings


def _wrong_options() -> Iterator[ConfigError]:
    for load in (load_web, load_upkeep):
        try:
            load()
        except ConfigError as error:
            yield error


def _trust(adapter: PushAdapter) -> Iterator[Finding]:
    """Whether a webhook adapter can tell who sends, and so takes anything."""
    if adapter.off:
        names = unset_variables(adapter.name)
        remedy = (
            f"set {' or '.join(names)} in the environment of `switchboard serve`, and of this command"
            if names
            else "name it in the adapter's table, as ${NAME} (docs/webhooks.md shows each sender's)"
        )
        what = f"it is OFF, as {adapter.off}: it takes nothing"
        yield Finding("trust", f"adapter {adapter.name}", "error", what, remedy)
    elif adapter.trust_mode == "open":
        yield Finding(
            "trust", f"adapter {adapter.name}", "warning", "it is OPEN: whoever finds its address makes todos",
            'give it a token, or trust = "signed" and a secret',
        )  # fmt: skip


def _wrong(error: ConfigError) -> Finding:
    what = str(error)
    if "environment variable" in what and "is not set" in what:
        remedy = "set it, in the environment of every process that runs Switchboard"
    elif "literal password" in what:
        remedy = "put the password into the environment"
    else:
        remedy = "correct it in the file (switchboard.example.toml shows every key)"
    return Finding("configuration", SUBJECT, "error", what, remedy)
