"""``switchboard doctor``: what is wrong, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ..doctor import examine
from ..finding import Finding
from .output import as_one_line, as_row, json_option, write, write_json

_SIGNS = {"ok": ("✓", "ok", "green"), "warning": ("!", "warning", "yellow"), "error": ("✗", "error", "red")}


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look at everything, and say what is wrong and what to do.

    Everything that the configuration names: PostgreSQL, its schema and the role's rights, the source of each
    adapter and its user's rights, Dramatiq's broker, upkeep, who reads what. Nothing is changed. Exit status 1
    where anything is an error; warnings alone are 0.

    \b
    Examples:
      switchboard doctor
      switchboard doctor --json
    """
    findings = examine()
    if as_json:
        write_json([as_row(finding) | {"what": as_one_line(finding.what)} for finding in findings])
    else:
        write(_page(findings))
    if any(finding.severity == "error" for finding in findings):
        click.get_current_context().exit(1)


def _page(findings: Sequence[Finding]) -> str:
    """The findings by subject, and at the end how many there are of each kind."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as capture:
        for subject in dict.fromkeys(finding.subject for finding in findings):
            console.print(Text(as_one_line(subject), style="bold"))
            for finding in (each for each in findings if each.subject == subject):
                sign, word, style = _SIGNS[finding.severity]
                line = Text(f"  {sign} ", style=style)
                line.append(f"{word}: {finding.check}: ", style=style)
                line.append(as_one_line(finding.what), style="default")
                console.print(line)
                if finding.remedy:
                    console.print(Text(f"      → {as_one_line(finding.remedy)}"))
        count = {kind: sum(finding.severity == kind for finding in findings) for kind in _SIGNS}
        console.print(f"{count['error']} errors, {count['warning']} warnings, {count['ok']} ok")
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
