"""What was found: medians with their spread, ratios against what was to be reached, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .measurement import Figure
from .targets import TARGETS

_PACKAGES = ("dramatiq-switchboard dramatiq redis hiredis psycopg faststream procrastinate pgqueuer asyncpg").split()


@dataclass(slots=True)
class Results:
    """All rounds of all figures, by name, in the order in which they came."""

    values: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, figures: Iterable[Figure]) -> None:
        """One measurement's figures of one round."""
        for figure in figures:
            self.values.setdefault(figure.name, []).append(figure.value)
            self.units[figure.name] = figure.unit

    def median(self, name: str) -> float:
        """The middle of all rounds; ``KeyError`` where it was not measured."""
        return statistics.median(self.values[name])

    def ratios(self, name: str, other: str) -> list[float]:
        """``name`` over ``other`` in each round that has both."""
        return [a / b for a, b in zip(self.values.get(name, []), self.values.get(other, []), strict=False) if b]


def as_json(results: Results, versions: Mapping[str, str], *, quick: bool, took_seconds: float) -> dict[str, object]:
    """Everything, as ``bench/results.json`` holds it."""
    figures = {
        name: {
            "unit": results.units[name],
            "median": _short(statistics.median(values)),
            "low": _short(min(values)),
            "high": _short(max(values)),
            "rounds": [_short(value) for value in values],
        }
        for name, values in results.values.items()
    }
    targets = [
        {
            "what": target.what,
            "at_least": target.at_least,
            "ratio": _short(statistics.median(ratios)) if ratios else None,
            "low": _short(min(ratios)) if ratios else None,
            "high": _short(max(ratios)) if ratios else None,
            "reached": statistics.median(ratios) >= target.at_least if ratios else None,
        }
        for target in TARGETS
        for ratios in [target.ratios(results)]
    ]
    return {
        "quick": quick,
        "minutes": round(took_seconds / 60, 1),
        "machine": {
            "system": platform.platform(terse=True),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": dict(versions) | _installed(),
        "targets": targets,
        "figures": figures,
        "failures": results.failures,
    }


def show(results: Results) -> str:
    """The figures and the ratios, as a terminal shows them."""
    lines = [""]
    subject = ""
    for name, values in results.values.items():
        head, _, rest = name.partition(" / ")
        if head != subject:
            subject = head
            lines.append(f"{head}")
        unit = results.units[name]
        spread = (
            f"  ({_figure(min(values))} to {_figure(max(values))}, {len(values)} rounds)" if len(values) > 1 else ""
        )
        lines.append(f"  {rest:<62}{_figure(statistics.median(values)):>10} {unit:<8}{spread}")
    lines += ["", f"{'ratio':<82}{'found':>7}{'spread':>16}{'at least':>10}"]
    for target in TARGETS:
        ratios = target.ratios(results)
        if not ratios:
            lines.append(f"  {target.what:<80}{'-':>7}{'':>16}{target.at_least:>10}")
            continue
        middle = statistics.median(ratios)
        verdict = "" if middle >= target.at_least else "   not reached"
        spread = f"{_figure(min(ratios))} to {_figure(max(ratios))}" if len(ratios) > 1 else ""
        lines.append(f"  {target.what:<80}{_figure(middle):>7}{spread:>16}{target.at_least:>10}{verdict}")
    lines += [f"FAILED: {failure}" for failure in results.failures]
    return "\n".join(lines)


def write(document: Mapping[str, object], path: Path) -> None:
    """The JSON file, in whole lines so that two runs can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _installed() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
