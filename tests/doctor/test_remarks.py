"""Remarks: what is worth a look, with the numbers that an independent count gives."""

import re

import numpy as np
import pyarrow as pa
import pytest
from support.data.doctor_logs import changed, examined, findings_of, sound_log
from support.runs.harness import make_driver

from pipeline.doctor import look_at_rows as module
from pipeline.doctor.diagnose import diagnose
from pipeline.doctor.look_at_rows import look_at_rows
from pipeline.doctor.sample import allotted
from pipeline.doctor.seen import MAX_JUDGED, judged_rows
from pipeline.features.settings import Standardize
from pipeline.models import LR
from pipeline.workflow import Model, Number, Schedule


def remark(findings, kind):
    (found,) = (finding for finding in findings if finding.kind == kind)
    assert found.level == "remark"
    return found


def test_keys_of_test_that_train_never_had_are_counted(tmp_path):
    log = sound_log()
    log["test"]["user"][:600] += 10_000
    found = remark(findings_of(tmp_path, log), "unseen_keys")
    assert found.columns == ("user",)
    assert "user 20.0% (" in found.text
    new = np.unique(log["test"]["user"])
    share = np.mean(~np.isin(new, np.concatenate([log[f"train-{n}"]["user"] for n in (1, 2, 3)])))
    assert f"({share:.1%})" in found.text


def test_unseen_values_of_lists_are_counted_one_by_one(tmp_path):
    log = sound_log()
    for name, columns in log.items():
        values = [[1, 2], [], [3], [1, 2, 3, 99 if name == "test" else 1]] * (len(columns["label"]) // 4)
        columns["seen"] = pa.array(values, pa.list_(pa.int64()))
    found = remark(findings_of(tmp_path, log, ("user", "seen")), "unseen_keys")
    assert found.columns == ("seen",)
    # One of seven values, and of four different ones; an empty list has none.
    assert "seen 14.3% (25.0%)" in found.text


def test_drift_from_the_first_file_to_the_last_is_measured(tmp_path):
    log = sound_log()
    log["test"]["city"][: len(log["test"]["city"]) // 2] = 3000
    found = remark(findings_of(tmp_path, log), "drift")
    assert found.columns == ("city",)
    moved = float(re.search(r"city ([\d.]+)% \(", found.text)[1])
    assert abs(moved - 47.5) < 2
    assert not [finding for finding in findings_of(tmp_path, sound_log()) if finding.level == "remark"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("log")
    log = sound_log()
    # What is 1 in test alone, no model can know.
    log["test"]["label"][log["test"]["city"] == 3007] = 1
    changed(log, "price", 1.0, lambda columns: np.random.default_rng(9).lognormal(2, 1, len(columns["label"])))
    workflow = examined(root, log).model_copy(
        update={"model": Model(kind=LR, embedding_dim=0), "schedule": Schedule(batch_size=500, epochs=6)}
    )
    # What a feature makes is shuffled with the column that it is made of.
    scaled = Standardize(column="price", name="price_scaled", mean=2.0, std=1.0, log1p=True)
    made = {"data.features": (scaled,), "data.numbers": (Number(name="price_scaled"),)}
    workflow = workflow.with_settings({"optimizer.rows.lr": 0.1, **made})
    make_driver(workflow, root / "run").run()
    return workflow, root / "run"


@pytest.fixture(scope="module")
def of_run(trained):
    said = []
    return diagnose(*trained, said.append), said


def test_importance_is_that_of_the_fields_the_label_was_made_of(of_run):
    found = remark(of_run[0], "importance")
    falls = {name: float(fall) for name, fall in re.findall(r"(\w+) (-?\d\.\d+) \+- ", found.text)}
    assert set(found.columns) == {"user", "item", "city", "price"}
    assert set(found.columns[:2]) == {"user", "item"}
    assert min(falls["user"], falls["item"]) > 0.05
    assert max(falls.get("price", 0), falls.get("city", 0)) < 0.02
    assert "(10 parts, each with 5 evaluations)" in found.text


def test_the_slice_whose_labels_were_set_is_the_worst_calibrated(of_run):
    found = remark(of_run[0], "calibration")
    assert found.columns[0] == "city"
    assert re.search(r"agree on all rows: city=3007: 0\.\d+ predicted, 1\.0000 observed", found.text)


def test_faults_come_before_remarks(tmp_path):
    log = sound_log()
    log["test"]["city"][: len(log["test"]["city"]) // 2] = 3000
    for columns in log.values():
        columns["user"][:] = 1001
    levels = [finding.level for finding in findings_of(tmp_path, log)]
    assert levels == sorted(levels)
    assert set(levels) == {"fault", "remark"}


def test_without_a_run_it_says_what_is_left_out(tmp_path):
    said = []
    diagnose(examined(tmp_path, sound_log()), None, said.append)
    assert said[0].startswith("read all rows: 12,000 of train (3 files)")
    assert said[1] == "without a run, checks that need a model are left out (second_epoch, importance, calibration)"


@pytest.mark.parametrize("cells", [600, 6_000, 60_000])
def test_a_sample_has_its_size_and_rows_of_every_file(tmp_path, monkeypatch, cells):
    monkeypatch.setattr(module, "MAX_CELLS", cells)
    seen = look_at_rows(examined(tmp_path, sound_log()))
    assert 0.9 * min(cells // 6, 18_000) <= seen.num_rows <= cells // 6
    assert seen.total_rows == 18_000
    assert [file.path.stem for file in seen.files] == ["train-1", "train-2", "train-3", "validation", "test"]
    # Half for train, from all four row groups of each file.
    assert abs(2 * seen.rows_of("train").sum() - seen.num_rows) <= 8
    assert all(len(np.unique(seen.row_N[seen.file_N == number] // 1000)) == 4 for number in range(3))


def test_a_sample_estimates_the_share_of_shared_rows(tmp_path, monkeypatch):
    log = sound_log()
    for name in log["test"]:
        log["test"][name][::5] = np.concatenate([log[f"train-{n}"][name] for n in (1, 2, 3)])[::20]
    monkeypatch.setattr(module, "MAX_CELLS", 36_000)
    (found,) = (finding for finding in findings_of(tmp_path, log) if finding.kind == "shared_rows")
    assert abs(float(re.match(r"([\d.]+)%", found.text)[1]) - 20) < 6
    assert "about, from 25.0% of train" in found.text


def test_what_one_does_not_want_the_others_get():
    assert allotted([10, 10, 10], [2, 1, 1], 100) == [10, 10, 10]
    assert allotted([100, 100, 100], [2, 1, 1], 100) == [50, 25, 25]
    assert allotted([1000, 10, 0], [2, 1, 1], 100) == [90, 10, 0]


def test_judged_rows_are_bounded_and_of_test_or_validation(tmp_path):
    log = sound_log(files={"train": 100, "validation": MAX_JUDGED + 100})
    judged = judged_rows(look_at_rows(examined(tmp_path / "a", log)))
    assert (judged.split, judged.num_rows) == ("validation", MAX_JUDGED)
    log = sound_log(files={"train": 100})
    assert judged_rows(look_at_rows(examined(tmp_path / "b", log))) is None
