"""What the README says of the benchmark is what its last full run found."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))
ROW = re.compile(
    r"^\| (?P<what>[^|]+) \| (?P<at_least>[\d.]+) \| (?P<found>[\d.]+) \((?P<spread>[^)]*)\) \|", re.MULTILINE
)


def test_it_is_of_a_full_run_in_which_everybody_did_their_work() -> None:
    assert RESULTS["quick"] is False
    assert RESULTS["failures"] == []


@pytest.mark.parametrize("target", RESULTS["targets"], ids=lambda target: target["what"])
def test_each_ratio_is_in_the_readme_reached_or_not(target: dict[str, object]) -> None:
    [row] = [row for row in ROW.finditer(README) if row["what"] == target["what"]]
    assert float(row["at_least"]) == target["at_least"]
    assert row["found"] == shown(target["ratio"])
    spread = "once" if target["low"] == target["high"] else f"{shown(target['low'])} to {shown(target['high'])}"
    assert row["spread"] == spread


def test_each_plot_in_the_readme_is_there() -> None:
    plots = re.findall(r"\]\((bench/[^)]*\.png)\)", README)
    assert plots
    for plot in plots:
        assert (ROOT / plot).read_bytes().startswith(b"\x89PNG"), plot


def shown(ratio: object) -> str:
    """Two figures, and whole numbers from 10 on."""
    assert isinstance(ratio, int | float)
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
