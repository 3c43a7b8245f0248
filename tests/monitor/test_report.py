"""What a run says at its end, and after each evaluation."""

import math
import re

import pytest

from pipeline.metrics.totals import DiskTotals, TierTotals
from pipeline.monitor.page.tables import stages_table
from pipeline.monitor.report import evaluated, miscalibrated, span_table, summary
from pipeline.records import Moves

CELL = "<t[dh].*?>(.*?)</t[dh]>"
STAGES = ("read", "dedup", "plan", "prefetch", "train", "write_back")


@pytest.fixture
def result():
    totals = TierTotals()
    totals.add(Moves(keys=3_000_000_000, device_hits=2_100_000_000, host_hits=500_000_000, disk_hits=400_000_000))
    disk = DiskTotals(commits=12, commit_seconds=3.21, rows_changed=1 << 20, rows_merged=1 << 22, written_bytes=3 << 30)
    return {
        "name": "criteo[small]", "auc": 0.80314159, "logloss": 0.4412, "split": "test",
        "epochs": [{"epoch": 1, "split": "test", "auc": 0.80314159, "logloss": 0.4412}],
        "examples": 6_000_000, "seconds": 33.04, "examples_per_second": 181_598.1, "ready": 2.13, "workers": [],
        "stages": dict.fromkeys(STAGES, 1_234.56), "cpu_seconds": dict.fromkeys(STAGES, 1.25),
        "hidden": {stage: 0.964 for stage in STAGES if stage != "train"},
        "tiers": totals.report({"device": 40_000_000, "host": 200_000_000}, 224, 10 << 30, 900 << 30),
        "disk": disk.report(224, 7 << 20), "fingerprint": "0123456789abcdef" * 4,
    }  # fmt: skip


def test_a_run_ends_with_its_result_in_three_lines(result):
    assert summary(result).splitlines() == [
        "criteo[small]: 6,000,000 training examples in 33.0 s, 181,598 a second with evaluation and commits",
        "test: auc 0.80314, logloss 0.44120",
        "fingerprint " + "0123456789abcdef" * 4,
    ]


def test_stages_tiers_and_workers_have_their_cells(result):
    cells = re.findall(CELL, stages_table(result))
    assert cells[cells.index("prefetch") :][:4] == ["prefetch", "1,234.6", "1.2", "96%"]
    assert cells[cells.index("train") :][3] == "-"
    assert " ".join(cells[cells.index("host") :][1:7]) == "200,000,000 rows 500,000,000 55.6% 0 500,000,000 104.31"
    assert " ".join(cells[cells.index("disk") :][1:7]) == "900.0 GiB 400,000,000 100.0% 0 400,000,000 83.45"
    sent = {"bytes": 81_920, "messages": 4, "bytes_per_step": 20_480.0}
    cells = re.findall(CELL, stages_table(result | {"workers": [{"rows": sent, "dense": sent}, {"dense": sent}]}))
    assert cells[-6:] == ["0", "20.0", "20.0", "1", "0.0", "20.0"]


def test_the_auc_within_groups_is_shown_only_with_groups(result):
    assert "gauc" not in summary(result).splitlines()[-2]
    assert "gauc" not in summary(result | {"gauc": None}).splitlines()[-2]
    assert ", logloss 0.44120, gauc 0.71234" in summary(result | {"gauc": 0.712341}).splitlines()[-2]


def test_the_line_of_a_split_shows_how_its_metrics_were_computed():
    entry = {"epoch": 2, "split": "test", "auc": 0.75, "ne": 0.8123456, "examples": 9000}
    assert evaluated(entry) == "epoch 2 test: auc 0.75000, ne 0.81235"
    note = evaluated({"split": "test", "logloss": 0.3, "ne": 0.75})
    assert note == "test: logloss 0.30000 (always the mean: 0.40000), ne 0.75000"
    how = "progressive, in training mode: dropout and batch norm as in training; 9,000 examples"
    assert evaluated(entry | {"split": "train"}) == f"epoch 2 train ({how}): auc 0.75000, ne 0.81235"
    rest = {"epoch": 2, "split": "train", "clipped": 0.25, "from_example": 4097}
    assert evaluated(rest) == "epoch 2 train (from example 4,097 on, where the run was resumed): clipped 0.25000"


def test_each_label_is_shown_once_on_a_short_line(result):
    of = {"auc": 0.75, "logloss": 0.3, "ne": 0.75, "calibration": 1.0, "gauc": 0.7, "gauc_share": 0.5}
    both = {f"{name}_{label}": value for label in ("income_50k", "never_married") for name, value in of.items()}
    entry = {"epoch": 2, "split": "test", **of, **both, "clipped": 0.25, "examples": 9000}
    head, *lines = evaluated(entry).splitlines()
    assert head == "epoch 2 test: clipped 0.25000"
    assert [line.split()[0] for line in lines] == ["income_50k", "never_married"]
    assert max(map(len, lines)) < 140
    assert summary(result | {"epochs": [entry]}).splitlines()[-4:-1] == [
        "test:",
        "  income_50k     auc 0.75000, logloss 0.30000, gauc 0.70000",
        "  never_married  auc 0.75000, logloss 0.30000, gauc 0.70000",
    ]


def test_errors_of_a_number_are_shown_in_place_of_auc(result):
    entry = {"epoch": 1, "split": "test", "mse": 4.0, "rmse": 2.0, "mae": 1.5, "r2": 0.25, "examples": 9}
    line = "test: mse 4.00000, rmse 2.00000, mae 1.50000, r2 0.25000"
    assert evaluated(entry) == f"epoch 1 {line}"
    assert summary(result | {"auc": None, "logloss": None, "epochs": [entry]}).splitlines()[1] == line
    both = {f"{name}_dwell": entry[name] for name in ("mse", "rmse", "mae", "r2")} | {"ne_click": 0.9, "ne": 0.9}
    assert [line.split()[0] for line in evaluated({"split": "test", **both}).splitlines()[1:]] == ["dwell", "click"]


def test_a_model_far_worse_than_the_mean_label_is_warned_about():
    entry = {"epoch": 2, "split": "validation", "ne": 1.3, "examples": 9000}
    assert evaluated(entry) == "epoch 2 validation: ne 1.30000"
    line, warning = evaluated(entry | {"ne": 8.7e18}).splitlines()
    assert line.endswith(": ne 8700000000000000000.00000")
    assert warning.startswith(
        "warning: ne of validation is 8.7e+18: worse by that factor than always predicting the mean label;"
    )
    assert "lower optimizer.dense.lr or optimizer.rows.lr" in warning
    several = evaluated({"epoch": 1, "split": "test", "ne": 0.9, "ne_click": 0.9, "ne_buy": math.inf}).splitlines()
    assert [line.split(":")[0] for line in several[:3]] == ["epoch 1 test", "  click  ne 0.90000", "  buy    ne inf"]
    assert several[3].startswith("warning: ne of test, buy, is inf")
    assert len(evaluated(entry | {"ne": math.nan}).splitlines()) == 1, "one class"


@pytest.mark.parametrize(
    ("rate", "examples", "calibration", "said"),
    [
        (0.03, 100_000, 1.31, "is 1.310: the model predicts 31% too many positives (chance alone: 1.8%)"),
        (0.03, 100_000, 0.8, "is 0.800: the model predicts 20% too few positives"),
        (0.03, 100_000, 1.09, None),
        (0.03, 1_000, 1.31, None),
        (0.0, 100_000, math.nan, None),
    ],
)
def test_a_calibration_off_by_more_than_chance_is_warned_about(result, rate, examples, calibration, said):
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate) if rate else math.nan
    of = {"auc": 0.7, "logloss": 0.9 * entropy, "ne": 0.9, "calibration": calibration}
    several = of | {f"{name}_{label}": value for label in ("a", "b") for name, value in of.items()}
    for metrics, texts in ((of, [""]), (several, [", a,", ", b,"])):
        warnings = miscalibrated({"split": "test", **metrics, "examples": examples})
        assert len(warnings) == (len(texts) if said else 0)
        for warning, text in zip(warnings, texts, strict=False):
            assert warning.startswith(f"warning: calibration of test{text} {said}")
            assert "Compare the positive rates" in warning
        assert summary(result | {"warnings": warnings}).splitlines()[2:-1] == warnings


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_missing_numbers_show_as_dashes(result, nothing):
    for name in ("auc", "logloss", "examples_per_second"):
        result[name] = nothing
    result["fingerprint"] = None
    assert summary(result).splitlines()[-2:] == ["test: auc -, logloss -", "fingerprint -"]


def test_a_run_without_an_evaluation_says_why_it_has_no_metrics(result):
    result |= {"split": None, "auc": None, "logloss": None, "gauc": None, "epochs": []}
    assert summary(result).splitlines()[1:-1] == [
        "no metrics: there is no validation or test split, and no span was scored"
    ]


def test_spans_have_a_row_for_each_label():
    of = {"split": "span", "trained": 1200, "examples": 40, "examples_buy": 7}
    click, buy = {"auc_click": 0.75, "ne_click": 0.5}, {"auc_buy": None, "ne_buy": 1.5}
    assert span_table([of | {"span": "a", "auc": 0.75, "ne": 0.5} | click | buy]) == [
        "spans, each scored before it was trained on:",
        "  span  label  examples  trained before      auc       ne",
        "  a     click        40           1,200  0.75000  0.50000",
        "  a       buy         7           1,200        -  1.50000",
    ]
    assert (
        span_table([of | {"span": "a", "auc": 0.75, "ne": 0.5}])[1]
        == "  span  examples  trained before      auc       ne"
    )
