"""Faults in a part of the rows are told from sound rows by what sound rows never do; and the sound rows most like them
are not told."""

import numpy as np
import pyarrow as pa
import pytest
from examined import faults_of, findings_of, sound_log

from pipeline.workflow import Number

MANY = dict.fromkeys([*(f"train-{n}" for n in range(6)), "validation", "test"], 8000)


@pytest.fixture
def log():
    return sound_log()


# Leaks.


def test_the_label_counted_in_a_number_is_a_leak_and_a_count_of_other_rows_is_none(tmp_path, log):
    rng = np.random.default_rng(1)
    for columns in log.values():
        columns["before"] = rng.poisson(0.6 + 0.6 * columns["label"])
        columns["clicks"] = rng.poisson(0.6, len(columns["label"])) + columns["label"]
    numbers = tuple(Number(name=name, log1p=True) for name in ("price", "before", "clicks"))
    assert faults_of(tmp_path, log, numbers=numbers) == [("leak", ("clicks",))]


def test_a_number_that_tells_the_label_where_it_is_known_is_a_leak(tmp_path, log):
    rng = np.random.default_rng(2)
    for columns in log.values():
        seconds = np.where(columns["label"] | (rng.random(len(columns["label"])) < 0.03), rng.lognormal(3, 1), 0.0)
        columns["seconds"] = pa.array(seconds, mask=rng.random(len(seconds)) < 0.9)
    numbers = tuple(Number(name=name, log1p=True) for name in ("price", "seconds"))
    assert ("leak", ("seconds",)) in faults_of(tmp_path, log, numbers=numbers)


def test_an_id_that_only_positives_have_is_a_leak_if_others_have_0(tmp_path, log):
    rng = np.random.default_rng(3)
    for columns in log.values():
        has = (columns["label"] == 1) & (rng.random(len(columns["label"])) < 0.1)
        columns["order"] = np.where(has, rng.integers(1, 2**40, len(has)), 0)
    assert faults_of(tmp_path, log, ("user", "item", "city", "order")) == [("leak", ("order",))]


def test_rows_that_can_have_no_label_are_no_leak_of_the_few_that_can(tmp_path, log):
    rng = np.random.default_rng(4)
    for columns in log.values():
        num = len(columns["label"])
        columns["state"] = rng.choice(["working", "child", "retired"], num, p=[0.6, 0.38, 0.02])
        chance = np.where(columns["state"] == "working", 0.1, np.where(columns["state"] == "retired", 0.4, 0.0))
        columns["label"] = (rng.random(num) < chance).astype(np.int8)
    assert "leak" not in dict(faults_of(tmp_path, log, ("user", "item", "city", "state")))


# Time.


def dated(log, permute):
    times = np.concatenate([log[name]["time"] for name in log if name.startswith("train")])
    times = np.random.default_rng(4).permutation(times) if permute else times
    named = {name: f"train/dt=2026-01-0{name[-1]}/part" for name in log if name.startswith("train")}
    parts = np.split(times, len(named))
    found = {name: columns for name, columns in log.items() if name not in named}
    return {path: log[name] | {"time": part} for (name, path), part in zip(named.items(), parts, strict=True)} | found


@pytest.mark.parametrize("permute", [True, False])
def test_rows_in_folders_of_other_dates_are_a_fault(tmp_path, log, permute):
    for day in (1, 2, 3):
        (tmp_path / "train" / f"dt=2026-01-0{day}").mkdir(parents=True)
    assert faults_of(tmp_path, dated(log, permute)) == ([("time_order", ("time",))] if permute else [])


# Constant columns.


@pytest.mark.parametrize(("name", "value"), [("train-2", -1), ("validation", 1007)])
def test_a_value_in_a_tenth_of_the_rows_of_a_file_is_a_fault(tmp_path, name, value):
    log = sound_log(files=MANY)
    log[name]["user"][np.random.default_rng(5).random(MANY[name]) < 0.1] = value
    (fault,) = (finding for finding in findings_of(tmp_path, log) if finding.level == "fault")
    assert (fault.kind, fault.columns) == ("constant_column", ("user",))


def test_a_day_on_which_one_user_comes_often_with_an_item_of_his_own_is_no_fault(tmp_path):
    log = sound_log(files=MANY)
    often = np.random.default_rng(6).random(MANY["train-2"]) < 0.1
    log["train-2"]["user"][often], log["train-2"]["item"][often] = 1007, 2011
    assert faults_of(tmp_path, log) == []


def test_a_day_on_which_the_shares_of_many_values_move_is_no_fault(tmp_path):
    log = sound_log(files=MANY)
    item = log["train-2"]["item"]
    log["train-2"]["item"] = np.where(np.random.default_rng(6).random(len(item)) < 0.1, 2000 + (item - 2000) // 3, item)
    assert faults_of(tmp_path, log) == []


# Copied columns.


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_column_that_follows_another_in_a_part_of_the_rows_is_a_fault(tmp_path, renamed, share):
    log = sound_log(files=MANY)
    rng = np.random.default_rng(7)
    for columns in log.values():
        copied = rng.random(len(columns["city"])) < share
        town = np.where(copied, columns["city"], rng.permutation(columns["city"]))
        columns["town"] = town * 7 % 101 if renamed else town
    categories = ("user", "item", "city", "town")
    assert faults_of(tmp_path, log, categories) == [("copied_column", ("city", "town"))]


@pytest.mark.parametrize("kind", ["moves to a town nearby", "some stay and some do not", "nothing"])
def test_columns_that_go_together_for_another_reason_are_no_copies(tmp_path, kind):
    log = sound_log(files=MANY)
    rng = np.random.default_rng(8)
    for columns in log.values():
        city, other = columns["city"] - 3000, rng.permutation(columns["city"]) - 3000
        chance = rng.random(len(city))
        near = np.where(chance < 0.2, city, np.where(chance < 0.4, (city + 1) % 20, other))
        stays = np.where(chance < 0.03 * (city % 20), city, other)
        columns["town"] = {"moves to a town nearby": near, "some stay and some do not": stays}.get(kind, other)
    assert faults_of(tmp_path, log, ("user", "item", "city", "town")) == []


# Labels.


def test_a_file_with_fewer_negatives_is_a_fault_where_files_are_alike(tmp_path):
    log = sound_log(files=MANY)
    rng = np.random.default_rng(9)
    kept = (log["train-2"]["label"] == 1) | (rng.random(MANY["train-2"]) < 0.8)
    log["train-2"] = {name: values[kept] for name, values in log["train-2"].items() if name != "time"}
    for name in log:
        log[name].pop("time", None)
    # Where negatives are gone, the features of those that are left are those of positives more often.
    for columns in log.values():
        columns["user"], columns["item"] = (rng.permutation(columns[name]) for name in ("user", "item"))
        columns["city"] = np.where(rng.random(len(columns["user"])) < 0.9, columns["user"] % 20, 7) + 3000
    assert faults_of(tmp_path, log) == [("label_rate", ("label",))]


@pytest.mark.parametrize("num_gaps", [1, 12])
def test_rows_without_a_label_that_are_like_all_others_are_a_fault(tmp_path, num_gaps):
    log = sound_log()
    rng = np.random.default_rng(10)
    for columns in log.values():
        columns["label"] = (rng.random(len(columns["label"])) < 0.05).astype(np.int8)
    if num_gaps == 1:
        log["test"]["label"][-900:] = 0
    else:
        for begin in range(0, 3600, 300):
            log["train-2"]["label"][begin : begin + 260] = 0
    (fault,) = (finding for finding in findings_of(tmp_path, log) if finding.level == "fault")
    assert fault.kind == "label_rate"


def test_a_block_of_one_user_without_a_label_is_no_fault(tmp_path):
    log = sound_log()
    rng = np.random.default_rng(11)
    for columns in log.values():
        columns["label"] = (rng.random(len(columns["label"])) < 0.05).astype(np.int8)
    log["test"]["label"][-900:], log["test"]["user"][-900:] = 0, 1003 + np.arange(900) % 7
    assert "label_rate" not in dict(faults_of(tmp_path, log))
