"""RESULTS.md and the tables of README and docs/testing.md are those that `benchmarks/results/` gives."""

import argparse
import json
from itertools import chain

import pytest

from benchmarks.common import finish
from benchmarks.results import GROUPS, missed, pages, read


def test_pages_are_those_that_the_figures_give():
    for file, text in pages(read()).items():
        assert file.read_text() == text, "run python -m benchmarks.results"


def test_every_file_of_results_is_on_the_page():
    results = read()
    assert sorted(chain(*GROUPS.values())) == sorted(results)
    for name, one in results.items():
        shown = chain(*(row[1] if isinstance(row[1], list) else [row[1]] for row in one["rows"]))
        assert set(shown) <= one["values"].keys(), name


@pytest.mark.parametrize(
    ("value", "aim", "expected"),
    [(0.79, ">= 0.8", True), (0.8, ">= 0.8", False), (11, "<= 10", True), (0, "<= 0", False), (5, "", False)],
)
def test_a_figure_that_misses_its_aim_is_marked(value, aim, expected):
    assert missed(value, aim) == expected


def test_a_new_measurement_keeps_what_a_person_wrote(tmp_path, capsys):
    file = tmp_path / "case.json"
    by_hand = {"notes": "of 10 pairs", "rows": [["examples/s", "speed", ">= 1"]]}
    file.write_text(json.dumps(by_hand | {"values": {"speed": 1.0, "gone": 2.0}, "date": "2020-01-01"}))
    finish(argparse.Namespace(json=file, benchmark="benchmarks.case"), {"speed": 0.51234})
    now = json.loads(file.read_text())
    assert json.loads(capsys.readouterr().out) == now["values"] == {"speed": 0.5123}
    assert by_hand.items() <= now.items()
    assert now["command"].startswith("python -m benchmarks.case")
    assert now["date"] > "2020-01-01"
    assert "cores" in now["machine"]
