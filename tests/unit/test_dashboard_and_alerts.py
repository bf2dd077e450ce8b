"""The dashboard and the alert rules ask for what is exposed, in queries that Prometheus can read."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
from alerts import DOCS, RULES, firing

from switchboard.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS

DASHBOARD = json.loads((DOCS / "grafana" / "switchboard.json").read_text(encoding="utf-8"))

#: Every series that a scrape can have, with its labels.
SERIES = {
    **{f"{name}_total": set(labels) for name, (_, labels) in COUNTERS.items()},
    **{name: set(labels) for name, (_, labels) in GAUGES.items()},
    **{f"{name}_{part}": set(labels) for name, (_, labels, _) in HISTOGRAMS.items() for part in ("sum", "count")},
    **{f"{name}_bucket": {*labels, "le"} for name, (_, labels, _) in HISTOGRAMS.items()},
}

#: Values by a series' name and, here, its adapter.
Samples = dict[tuple[str, ...], float]


def of(node: Any) -> Iterator[Any]:
    """The query's nodes."""
    yield node
    for part in ("expr", "lhs", "rhs", "param", "vector_selector"):
        child = getattr(node, part, None)
        if child is not None and not isinstance(child, str | float):
            yield from of(child)
    args = getattr(node, "args", None)
    for child in args or ():
        yield from of(child)


def parsed(query: str) -> Any:
    """The query, Grafana's own variables given a value."""
    return promql.parse(query.replace("$__rate_interval", "5m").replace("$adapter", ".*").replace("$queue", ".*"))


def check(query: str) -> set[str]:
    """The series that the query names; an AssertionError where one, or a label, does not exist."""
    tree = parsed(query)
    selectors = [node for node in of(tree) if isinstance(node, promql.VectorSelector)]
    assert selectors, query
    labels: set[str] = set()
    for selector in selectors:
        assert selector.name in SERIES, f"{selector.name} in {query}"
        labels |= SERIES[selector.name]
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= SERIES[selector.name], f"{asked} of {selector.name} in {query}"
    for grouped in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", query):
        names = {name.strip() for name in grouped.split(",") if name.strip()}
        assert names <= labels, f"{names} in {query}"
    return {str(selector.name) for selector in selectors}


def targets() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("title", "query"), list(targets()), ids=lambda each: each[:40])
def test_a_panel_asks_for_series_and_labels_that_exist(title: str, query: str) -> None:
    assert check(query), title


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_series_and_labels_that_exist(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    by = " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))
    for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
        assert label in by, f"{rule['alert']} tells of {label}, which its query does not keep"


def adapter(name: str, *, enabled: int = 1, consumers: int = 1, polled_at: float | None = None) -> Samples:
    """What is sampled of an adapter."""
    samples: Samples = {
        ("switchboard_adapter_enabled", name): float(enabled),
        ("switchboard_adapter_consumers", name): float(consumers),
    }
    if polled_at is not None:
        samples["switchboard_adapter_last_poll_timestamp_seconds", name] = polled_at
    return samples


def test_an_adapter_is_not_polled_where_its_source_is_silent_or_was_away_from_the_start_on() -> None:
    samples = {
        **adapter("well", polled_at=999.0),
        **adapter("silent", polled_at=800.0),
        **adapter("away from the start on"),
        **adapter("off", enabled=0, polled_at=800.0),
        **adapter("off from the start on", enabled=0),
        **adapter("nobody reads it", consumers=0),
    }
    assert firing("SwitchboardAdapterNotPolled", samples, at=1_000.0) == {"silent", "away from the start on"}
    assert firing("SwitchboardAdapterWithoutConsumers", samples) == {"nobody reads it"}


def test_a_legend_names_labels_that_the_query_keeps() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            kept = " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label in kept, f"{panel['title']}: {label}"


def test_every_metric_has_its_panel() -> None:
    shown = {name for _, query in targets() for name in check(query)}
    bases = {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in shown}
    assert bases == {*COUNTERS, *GAUGES, *HISTOGRAMS}


def test_the_dashboard_is_for_any_data_source() -> None:
    assert [each["type"] for each in DASHBOARD["templating"]["list"]][:1] == ["datasource"]
    used = set(re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD))) - {DASHBOARD["uid"]}
    assert used == {"${datasource}"}
    for variable in DASHBOARD["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert found
        assert found[2] in SERIES[found[1]]


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (column, line)
            for column in range(place["x"], place["x"] + place["w"])
            for line in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(column for column, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize(
    "query",
    [
        "sum by (adapter) (switchboard_no_such_thing)",
        "sum by (queue) (switchboard_adapter_unread)",
        'switchboard_todos{adapter="a"}',
        "rate(switchboard_claims_total[5m]",
        "sum by (adapter) (rate(switchboard_deliveries[5m]))",
    ],
)
def test_a_query_with_a_mistake_would_be_found(query: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(query)


def test_the_page_for_production_names_every_alert() -> None:
    page = DOCS / "production.md"
    if not page.exists():
        pytest.skip("there is no docs/production.md yet")
    text = page.read_text(encoding="utf-8")
    assert {rule["alert"] for rule in RULES} <= set(re.findall(r"Switchboard[A-Z]\w+", text))
