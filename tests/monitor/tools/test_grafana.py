"""docs/grafana.json asks only for metrics of the collector, and draws it where there is room."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from pipeline.monitor.tools.prometheus import COUNTERS, GAUGES

BOARD = json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text())
LABELS = {f"pipeline_run_{name}_total": {"run", *labels} for name, (_, labels) in COUNTERS.items()} | {
    f"pipeline_run_{name}": {"run", *labels} for name, (_, labels) in GAUGES.items()
}
"""Labels of each metric."""
TARGETS = [target for panel in BOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_a_query_names_only_metrics_and_labels_that_exist(target):
    query = target["expr"]
    (name,) = re.findall(r"pipeline_\w+", query)
    named = set(re.findall(r"(\w+)=~", query)) | set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    for group in re.findall(r"by \(([\w, ]+)\)", query):
        named |= set(group.split(", "))
    assert named <= LABELS[name]
    # The rate of what may go down means nothing, and a counter without it little.
    assert ("rate(" in query) == name.endswith("_total")
    assert query.count("(") == query.count(")")


def test_variables_ask_for_labels_that_exist():
    queries = [v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]
    for name, label in (re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups() for query in queries):
        assert label in LABELS[name]
    names = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$(\w+)", " ".join(t["expr"] for t in TARGETS))) <= names | {"__rate_interval"}
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {"${datasource}"}


def test_panels_do_not_cover_each_other():
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        next_to = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert next_to or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_speed_waits_hits_disk_commits_and_metrics_are_drawn():
    drawn = set(re.findall(r"pipeline_run_(\w+)", " ".join(target["expr"] for target in TARGETS)))
    assert drawn >= {
        "examples_per_second", "wait_seconds_total", "hit_ratio", "disk_bytes_total", "log_bytes", "free_bytes",
        "last_commit_seconds", "metric",
    }  # fmt: skip
    stacked = [p for p in BOARD["panels"] if "stacking" in p["fieldConfig"]["defaults"].get("custom", {})]
    assert "wait_seconds_total" in str(stacked)
