"""The pictures that the README shows, from one run's figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from .report import Results

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

_OURS, _OTHERS, _LIMIT = "#1f6feb", "#9aa4b2", "#d29922"


def draw(results: Results, folder: Path) -> None:
    """Writes ``ingest.png``, ``todos.png`` and ``growth.png``, each where it has something to show."""
    folder.mkdir(parents=True, exist_ok=True)
    _bars(results, folder / "ingest.png", {
        "One worker process, 300-byte bodies: messages stored a second": "ingest / stream, 300 B, 1 process / ",
        "Two worker processes": "ingest / stream, 300 B, 2 processes / ",
        "One worker process, 10 KB bodies": "ingest / stream, 10 KB, 1 process / ",
    })  # fmt: skip
    _bars(results, folder / "todos.png", {
        "No-op todos worked a second, one worker process": "todos / worked / ",
        "An idle queue: milliseconds until a todo begins, median": "todos / start, median / ",
    })  # fmt: skip
    _rows(results, folder / "growth.png")


def _bars(results: Results, path: Path, panels: dict[str, str]) -> None:
    shown = {
        title: [
            (name.removeprefix(prefix), values) for name, values in results.values.items() if name.startswith(prefix)
        ]
        for title, prefix in panels.items()
    }
    shown = {title: bars for title, bars in shown.items() if bars}
    if not shown:
        return
    heights = [len(bars) + 1 for bars in shown.values()]
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(8, 0.42 * sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, (title, bars) in zip(axes[:, 0], shown.items(), strict=True):
        _panel(axis, title, bars)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(axis: Axes, title: str, bars: Sequence[tuple[str, list[float]]]) -> None:
    names = [name for name, _ in bars]
    middles = [statistics.median(values) for _, values in bars]
    spread = [
        [middle - min(values) for middle, (_, values) in zip(middles, bars, strict=True)],
        [max(values) - middle for middle, (_, values) in zip(middles, bars, strict=True)],
    ]
    colours = [_OURS if name == "Switchboard" else _LIMIT if "PostgreSQL" in name else _OTHERS for name in names]
    drawn = axis.barh(names, middles, xerr=spread, color=colours, error_kw={"lw": 1, "ecolor": "#57606a"})
    axis.bar_label(drawn, labels=[f" {middle:,.0f}" if middle >= 10 else f" {middle:.1f}" for middle in middles])
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_title(title, loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _rows(results: Results, path: Path) -> None:
    figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    for what in ("ingest", "claim", "prune"):
        prefix, suffix = f"growth / {what}, ", " rows"
        points = sorted(
            (int(name.removeprefix(prefix).removesuffix(suffix).replace(",", "")), statistics.median(values))
            for name, values in results.values.items()
            if name.startswith(prefix)
        )
        if points and points[0][1]:
            axis.plot(
                [f"{rows:,}" for rows, _ in points],
                [value / points[0][1] for _, value in points],
                marker="o",
                label=what,
            )
    if axis.lines:
        axis.set_ylim(0, 1.3)
        axis.set_xlabel("events and todos already in the tables")
        axis.set_title("Rate, of that beside empty tables", loc="left", fontsize=10)
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=120)
    plt.close(figure)
