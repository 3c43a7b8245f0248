"""The final table."""

import io
import math

import pytest
from rich.console import Console

from pipeline.metrics.totals import DiskTotals, TierTotals
from pipeline.monitor.report import SHOWN_KINDS, evaluated, print_report
from pipeline.records import Moves

STAGES = ("read", "dedup", "plan", "prefetch", "train", "write_back")


@pytest.fixture
def result():
    totals = TierTotals()
    totals.add(Moves(keys=3_000_000_000, device_hits=2_100_000_000, host_hits=500_000_000, disk_hits=400_000_000))
    return {
        "name": "criteo[small]",
        "auc": 0.80314159,
        "logloss": 0.4412,
        "split": "test",
        "epochs": [{"epoch": 1, "split": "test", "auc": 0.80314159, "logloss": 0.4412}],
        "examples": 6_000_000,
        "seconds": 33.04,
        "examples_per_second": 181_598.1,
        "stages": dict.fromkeys(STAGES, 1_234.56),
        "cpu_seconds": dict.fromkeys(STAGES, 1.25),
        "hidden": {stage: 0.964 for stage in STAGES if stage != "train"},
        "ready": 2.13,
        "tiers": totals.report({"device": 40_000_000, "host": 200_000_000}, 224, 10 << 30, 900 << 30),
        "disk": DiskTotals(
            commits=12, commit_seconds=3.21, rows_changed=1 << 20, rows_merged=1 << 22, written_bytes=3 << 30
        ).report(224, 7 << 20),
        "workers": [],
        "fingerprint": "0123456789abcdef" * 4,
    }


def printed(result, width=100, tables=True):
    stream = io.StringIO()
    print_report(result, Console(file=stream, width=width), tables)
    return stream.getvalue().splitlines()


def cells(lines, first):
    return next(line.split() for line in lines if line.strip().startswith(f"{first} "))


def test_stage_and_tier_rows_have_their_cells(result):
    lines = printed(result)
    assert cells(lines, "prefetch") == ["prefetch", "1,234.6", "1.2", "96%"]
    assert cells(lines, "train")[-1] == "-"
    assert " ".join(cells(lines, "host")[1:]) == "200,000,000 rows 500,000,000 55.6% 0 500,000,000 104.31"
    assert " ".join(cells(lines, "disk")[1:]) == "900.0 GiB 400,000,000 100.0% 0 400,000,000 83.45"
    assert any("2.1 blocks were ready ahead of training" in line for line in lines)


def test_what_workers_sent_is_shown_for_several_workers_only(result):
    assert not any("KiB sent" in line for line in printed(result))
    sent = {"bytes": 81_920, "messages": 4, "bytes_per_step": 20_480.0}
    lines = printed(result | {"workers": [{"rows": sent, "dense": sent}, {"dense": sent}]})
    assert cells(lines, "worker") == ["worker", "rows", "dense"]
    assert cells(lines, "0") == ["0", "20.0", "20.0"]
    assert cells(lines, "1") == ["1", "0.0", "20.0"]
    assert "KiB sent to other workers a step" in " ".join(" ".join(lines).split())


def test_what_was_written_to_the_disk_is_shown(result):
    line = printed(result)[-4]
    assert line == (
        "12 commits in 3.2 s, 3.00 GiB written to the log, 0.88 GiB of it by merging sparse chunks, "
        "write amplification 1.71"
    )


def test_tables_fit_100_columns_uncut(result):
    sent = {kind: {"bytes_per_step": 1e9} for kind in SHOWN_KINDS}
    tables = printed(result | {"workers": [sent]}, width=300)[:-4]
    assert len(tables) > 20
    assert max(map(len, tables)) <= 100


def test_without_tables_the_result_alone_is_printed_and_its_metrics_last(result):
    assert printed(result, tables=False) == printed(result)[-3:] == [
        "fingerprint " + "0123456789abcdef" * 4,
        "criteo[small]: 6,000,000 examples in 33.0 s, 181,598 examples/s",
        "test auc 0.80314, logloss 0.44120",
    ]  # fmt: skip


def test_the_auc_within_groups_is_shown_only_with_groups(result):
    assert "gauc" not in printed(result)[-1]
    assert "gauc" not in printed(result | {"gauc": None})[-1]
    assert ", logloss 0.44120, gauc 0.71234" in printed(result | {"gauc": 0.712341})[-1]


def test_the_line_of_a_split_shows_its_metrics_and_how_they_were_computed():
    entry = {"epoch": 2, "split": "test", "auc": 0.75, "ne": 0.8123456, "examples": 9000}
    assert evaluated(entry) == "epoch 2 test: auc 0.75000, ne 0.81235"
    told = evaluated({"split": "test", "logloss": 0.3, "ne": 0.75})
    assert told == "test: logloss 0.30000 (always the mean: 0.40000), ne 0.75000"
    how = "progressive, in training mode: dropout and batch norm as in training; 9,000 examples"
    assert evaluated(entry | {"split": "train"}) == f"epoch 2 train ({how}): auc 0.75000, ne 0.81235"


def test_each_label_is_shown_once_on_a_short_line(result):
    of = {"auc": 0.75, "logloss": 0.3, "ne": 0.75, "calibration": 1.0, "gauc": 0.7, "gauc_share": 0.5}
    both = {f"{name}_{label}": value for label in ("income_50k", "never_married") for name, value in of.items()}
    entry = {"epoch": 2, "split": "test", **of, **both, "clipped": 0.25, "examples": 9000}
    head, *lines = evaluated(entry).splitlines()
    assert head == "epoch 2 test: clipped 0.25000"
    assert [line.split()[0] for line in lines] == ["income_50k", "never_married"]
    assert max(map(len, lines)) < 140
    assert printed(result | {"epochs": [entry]}, tables=False)[-3:] == [
        "test:",
        "  income_50k     auc 0.75000, logloss 0.30000, gauc 0.70000",
        "  never_married  auc 0.75000, logloss 0.30000, gauc 0.70000",
    ]


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


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_missing_numbers_show_as_dashes(result, nothing):
    for name in ("auc", "logloss", "examples_per_second", "ready"):
        result[name] = nothing
    result["tiers"]["host"]["hit_rate"] = nothing
    result["fingerprint"] = None
    lines = printed(result)
    assert lines[-1] == "test auc -, logloss -"
    assert lines[-3] == "fingerprint -"
    assert cells(lines, "host")[4] == "-"


def test_default_console_is_stdout_and_wide_enough(result, capsys):
    print_report(result, tables=True)
    assert capsys.readouterr().out.splitlines() == printed(result)
