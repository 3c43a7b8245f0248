"""Leaks in a part of the rows, and rows in the folders of other dates; and the sound rows most like them."""

import numpy as np
import pyarrow as pa
import pytest
from support.data.doctor_logs import faults_of, sound_log

from pipeline.workflow import Number


@pytest.fixture
def log():
    return sound_log()


# Leaks.


def test_a_count_is_a_leak_only_if_it_counts_its_own_label(tmp_path, log):
    rng = np.random.default_rng(1)
    for columns in log.values():
        columns["before"] = rng.poisson(0.6 + 0.6 * columns["label"])
        columns["clicks"] = rng.poisson(0.6, len(columns["label"])) + columns["label"]
    numbers = tuple(Number(name=name, log1p=True) for name in ("price", "before", "clicks"))
    assert faults_of(tmp_path, log, numbers=numbers) == [("leak", ("clicks",))]


def test_a_number_that_gives_the_label_where_known_is_a_leak(tmp_path, log):
    rng = np.random.default_rng(2)
    for columns in log.values():
        seconds = np.where(columns["label"] | (rng.random(len(columns["label"])) < 0.03), rng.lognormal(3, 1), 0.0)
        columns["seconds"] = pa.array(seconds, mask=rng.random(len(seconds)) < 0.9)
    numbers = tuple(Number(name=name, log1p=True) for name in ("price", "seconds"))
    assert ("leak", ("seconds",)) in faults_of(tmp_path, log, numbers=numbers)


def test_an_id_of_positives_alone_is_a_leak_if_others_have_0(tmp_path, log):
    rng = np.random.default_rng(3)
    for columns in log.values():
        has = (columns["label"] == 1) & (rng.random(len(columns["label"])) < 0.1)
        columns["order"] = np.where(has, rng.integers(1, 2**40, len(has)), 0)
    assert faults_of(tmp_path, log, ("user", "item", "city", "order")) == [("leak", ("order",))]


def test_rows_that_can_have_no_positive_label_are_no_leak(tmp_path, log):
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
