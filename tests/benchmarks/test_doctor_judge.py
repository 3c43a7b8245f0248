"""How `benchmarks.doctor` judges a doctor: by what a stand-in says that knows nothing of the data."""

from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.doctor.__main__ import examine
from benchmarks.doctor.faults import Planted
from benchmarks.doctor.judge import is_planted, judge, precision, recall
from benchmarks.doctor.sets import synthetic
from benchmarks.doctor.table import figures, print_kinds, print_missed, print_remarks


class Finding(NamedTuple):
    kind: str
    level: str = "fault"
    columns: tuple[str, ...] = ()
    text: str = "found"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("doctor") / "data", 1000)


def planted(kind, *columns, also=(), strength=1.0):
    return Planted(kind, "variant", strength, columns, also, 1, 1, None)


def verdicts_of(data, out, kinds, *findings):
    return examine({"synthetic": data}, kinds, out, lambda workflow, run_dir, say: findings, 1)


def test_a_silent_doctor_finds_nothing_and_is_never_wrong(data, tmp_path):
    found = figures(verdicts_of(data, tmp_path, ["time_order", "unscaled_number"]))
    assert [found[f"recall_{percent}"] for percent in (100, 10, 1)] == [0.0, 0.0, 0.0]
    assert found["precision"] == 1.0
    assert found["clean_faults"] == 0


def test_a_doctor_that_repeats_itself_is_wrong_on_clean_data(data, tmp_path):
    verdicts = verdicts_of(data, tmp_path, ["shared_rows", "unscaled_number"], Finding("shared_rows"))
    assert recall(verdicts, 0.1, "shared_rows") == 1.0
    assert recall(verdicts, 0.1, "unscaled_number") == 0.0
    found = figures(verdicts)
    assert found["recall_10"] == pytest.approx(3 / 7, abs=1e-4)
    # Two clean copies and three controls; three and four variants in three strengths each.
    assert found["precision"] == pytest.approx(9 / (9 + 12 + 2 + 3), abs=1e-4)
    assert found["clean_faults"] == 2 + 3


def test_remarks_count_neither_for_nor_against(data, tmp_path, capsys):
    verdicts = verdicts_of(data, tmp_path, ["shared_rows"], Finding("shared_rows", "remark", text="just so"))
    assert (recall(verdicts, 1.0), precision(verdicts)) == (0.0, 1.0)
    print_kinds(verdicts)
    print_missed(verdicts)
    print_remarks(verdicts)
    out = capsys.readouterr().out
    assert out.count("just so") == 2
    assert "shared_rows sampled_from_all 100% (250 of 250)" in out


def test_a_finding_of_a_column_must_name_the_planted_one():
    assert is_planted(planted("leak", "a"), Finding("leak", columns=("b", "a")))
    assert not is_planted(planted("leak", "a"), Finding("leak", columns=("b",)))
    assert not is_planted(planted("leak", "a"), Finding("leak"))
    assert is_planted(planted("copied_column", "a", "b"), Finding("copied_column", columns=("b", "a")))
    assert not is_planted(planted("copied_column", "a", "b"), Finding("copied_column", columns=("a", "c")))


def test_a_finding_of_rows_may_name_any_column():
    for kind in ("shared_rows", "time_order", "label_rate", "second_epoch"):
        assert is_planted(planted(kind, "a"), Finding(kind, columns=("b",)))
        assert not is_planted(planted(kind, "a"), Finding("leak", columns=("b",)))


def test_a_side_effect_of_a_fault_is_neither_wrong_nor_found():
    fault = planted("leak", "a", also=("constant_column",))
    verdict = judge("data", fault, [Finding("constant_column", columns=("a",)), Finding("copied_column")])
    assert ([one.kind for one in verdict.right], verdict.found) == (["constant_column"], False)
    assert [one.kind for one in verdict.wrong] == ["copied_column"]
    assert not judge("data", None, [Finding("leak", columns=("a",))]).right


@pytest.mark.prove
def test_a_near_unique_id_makes_later_epochs_worse(tmp_path, capsys):
    """And the clean copy does not: its best epoch is a later one, or it loses next to nothing."""
    runs = []

    def diagnose(workflow, run_dir, say):
        assert (run_dir / "result.json").is_file()
        assert run_dir.parent == workflow.data.root
        runs.append(run_dir)
        return ()

    sets = {"synthetic": synthetic(tmp_path / "data")}
    examine(sets, ["second_epoch"], tmp_path / "out", diagnose, 1, quick=True)
    lines = [line.partition("AUC by epoch ")[2].split() for line in capsys.readouterr().out.splitlines()]
    clean, *faulty = [[float(auc) for auc in aucs] for aucs in lines if aucs]
    assert min(clean[1:]) > clean[0] - 0.005
    assert len(faulty) == 2
    assert all(auc[0] - auc[-1] > 0.03 and auc[0] == max(auc) for auc in faulty)
    assert len(set(map(Path, runs))) == 2
