"""The alert rules about adapters, judged over the samples of one scrape: as much of PromQL as these rules use."""

import operator
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

DOCS = Path(__file__).parents[1] / "docs"

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]

#: The value of a query for each adapter that has one.
Vector = dict[str, float]

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, "==": operator.eq}
_SETS: dict[str, Callable[[Vector, Vector], Vector]] = {
    "and": lambda left, right: {name: value for name, value in left.items() if name in right},
    "unless": lambda left, right: {name: value for name, value in left.items() if name not in right},
    "or": lambda left, right: right | left,
}


def firing(alert: str, samples: Mapping[tuple[str, ...], float], *, at: float | None = None) -> set[str]:
    """The adapters for which the rule's query answers with these samples, each under its name and its adapter."""
    [query] = [rule["expr"] for rule in RULES if rule["alert"] == alert]
    found = _value(promql.parse(query), samples, time.time() if at is None else at)
    assert isinstance(found, dict)
    return set(found)


def _value(node: Any, samples: Mapping[tuple[str, ...], float], now: float) -> Vector | float:
    if isinstance(node, promql.NumberLiteral):
        return float(node.val)
    if isinstance(node, promql.Call):
        assert node.func.name == "time", node.func.name
        return now
    if isinstance(node, promql.ParenExpr):
        return _value(node.expr, samples, now)
    if isinstance(node, promql.AggregateExpr):
        assert (str(node.op), str(node.modifier)) == ("max", "by (adapter)")
        return _value(node.expr, samples, now)
    if isinstance(node, promql.VectorSelector):
        return {key[1]: value for key, value in samples.items() if key[0] == node.name}
    assert isinstance(node, promql.BinaryExpr), node
    left, right, what = _value(node.lhs, samples, now), _value(node.rhs, samples, now), str(node.op)
    if what == "-":
        assert isinstance(left, float)
        assert isinstance(right, dict)
        return {name: left - value for name, value in right.items()}
    assert isinstance(left, dict)
    if what in _SETS:
        assert isinstance(right, dict)
        return _SETS[what](left, right)
    assert isinstance(right, float)
    return {name: value for name, value in left.items() if _COMPARISONS[what](value, right)}
