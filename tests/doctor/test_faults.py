"""Each fault is found where it is, and what only looks like it is not."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.doctor_logs import FILES, changed, examined, faults_of, findings_of, sound_log
from support.depth import examples

from pipeline.doctor.second_epoch import find_second_epoch
from pipeline.workflow import Number


@pytest.fixture
def log():
    return sound_log()


def test_a_sound_log_has_no_fault(tmp_path, log):
    assert faults_of(tmp_path, log) == []


@examples(4, 100)
@given(st.integers(0, 2**32), st.integers(1, 2000), st.integers(0, 4), st.floats(0.1, 0.9))
def test_columns_that_go_with_nothing_have_no_fault(tmp_path_factory, seed, num_values, num_numbers, rate):
    rng = np.random.default_rng(seed)
    log = {
        name: {
            "label": (rng.random(num) < rate).astype(np.int8),
            **{c: base + (num_values * rng.random(num) ** 3).astype(np.int64) for c, base in (("a", 2), ("b", 10**6))},
            "c": rng.integers(0, 3, num),
            **{f"x{n}": rng.standard_normal(num) for n in range(num_numbers)},
        }
        for name, num in FILES.items()
    }
    numbers = tuple(Number(name=f"x{n}") for n in range(num_numbers))
    found = faults_of(tmp_path_factory.mktemp("log"), log, ("a", "b", "c"), numbers)
    assert [kind for kind, _ in found] == ["constant_column"] * (2 * (num_values == 1))


# Leaks.


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_value_that_comes_with_one_label_alone_is_a_leak(tmp_path, log, share):
    changed(log, "city", share, lambda columns: 50 + columns["label"])
    assert ("leak", ("city",)) in faults_of(tmp_path, log)


def test_a_number_that_holds_the_label_is_a_leak(tmp_path, log):
    changed(log, "price", 0.1, lambda columns: 3 + columns["label"] / 7)
    assert ("leak", ("price",)) in faults_of(tmp_path, log)


def test_a_column_that_is_null_except_for_positives_is_a_leak(tmp_path, log):
    rng = np.random.default_rng(2)
    for columns in log.values():
        order = rng.integers(0, 10**9, len(columns["label"]))
        columns["order"] = pa.array(order, mask=(columns["label"] == 0) | (rng.random(len(order)) < 0.9))
    assert ("leak", ("order",)) in faults_of(tmp_path, log, ("user", "item", "city", "order"))


def test_a_strong_field_with_exceptions_is_no_leak(tmp_path, log):
    changed(log, "city", 0.1, lambda columns: 50 + (np.random.default_rng(3).random(len(columns["label"])) < 0.5))
    for columns in log.values():
        columns["label"] = np.where((columns["city"] == 50) & (columns["user"] % 50 != 0), 1, columns["label"])
    assert "leak" not in dict(faults_of(tmp_path, log))


def test_a_value_with_only_the_commoner_label_is_a_remark(tmp_path, log):
    for columns in log.values():
        columns["label"] = np.where(columns["city"] == 3003, 0, columns["label"]).astype(np.int8)
    (found,) = findings_of(tmp_path, log)
    assert (found.kind, found.level, found.columns) == ("leak", "remark", ("city",))
    assert "rows with the value 3003 (the first is row " in found.text


def test_a_count_is_a_leak_only_if_it_counts_its_own_label(tmp_path, log):
    rng = np.random.default_rng(1)
    for columns in log.values():
        columns["before"] = rng.poisson(0.6 + 0.6 * columns["label"])
        columns["clicks"] = rng.poisson(0.6, len(columns["label"])) + columns["label"]
    numbers = tuple(Number(name=name, log1p=True) for name in ("price", "before", "clicks"))
    assert faults_of(tmp_path, log, numbers=numbers) == [("leak", ("clicks",))]


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


# Shared rows.


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_rows_of_test_that_are_in_train_are_found_and_counted(tmp_path, log, share):
    for name in log["test"]:
        log["test"][name][: int(3000 * share)] = log["train-2"][name][: int(3000 * share)]
    found = [finding for finding in findings_of(tmp_path, log) if finding.kind == "shared_rows"]
    assert [finding.level for finding in found] == ["fault"]
    assert f"{share:.2%} of the rows of test" in found[0].text
    assert "row 0 of test.parquet, which is row 0 of train-2.parquet" in found[0].text


def test_rows_that_are_equal_by_chance_are_no_fault(tmp_path):
    log = sound_log()
    for columns in log.values():
        del columns["price"]
    assert "shared_rows" not in dict(faults_of(tmp_path, log, ("city", "user")))


# Time.


def test_a_split_at_random_of_a_log_with_times_is_a_remark(tmp_path, log):
    times = np.random.default_rng(4).permutation(np.concatenate([columns["time"] for columns in log.values()]))
    for name, part in zip(log, np.split(times, np.cumsum(list(FILES.values()))[:-1]), strict=True):
        log[name]["time"] = part
    found = [finding for finding in findings_of(tmp_path, log) if finding.kind == "time_order"]
    assert [(finding.level, finding.columns) for finding in found] == [("remark", ("time",))] * 2
    assert "split at random" in found[0].text


def test_a_split_at_random_in_a_half_of_the_rows_is_a_fault(tmp_path, log):
    half = {name: np.random.default_rng(4).random(num) < 0.5 for name, num in FILES.items()}
    times = np.random.default_rng(5).permutation(np.concatenate([log[name]["time"][half[name]] for name in log]))
    for name, part in zip(log, np.split(times, np.cumsum([some.sum() for some in half.values()])[:-1]), strict=True):
        log[name]["time"][half[name]] = part
    assert ("time_order", ("time",)) in faults_of(tmp_path, log)


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("s"), pa.string()], ids=str)
def test_a_tenth_of_train_from_the_days_of_test_is_a_fault(tmp_path, log, kind):
    late = log["test"]["time"]
    changed(log, "time", 0.1, lambda columns: late[0] if columns is not log["test"] else columns["time"])
    for columns in log.values():
        times = pa.array(columns["time"])
        columns["time"] = times.cast(pa.timestamp("s")).cast(kind) if kind != pa.int64() else times
    assert ("time_order", ("time",)) in faults_of(tmp_path, log)


def test_a_file_of_train_whose_times_are_out_of_order_is_a_fault(tmp_path):
    log = sound_log(files=dict.fromkeys([*(f"train-{n}" for n in range(8)), "test"], 1000))
    log["train-2"]["time"], log["train-4"]["time"] = log["train-4"]["time"], log["train-2"]["time"]
    assert faults_of(tmp_path, log) == [("time_order", ("time",))]


def test_an_hour_of_the_day_is_no_clock(tmp_path, log):
    for columns in log.values():
        columns["hour"] = columns.pop("time") // 3600 % 24
        columns["time"] = np.random.default_rng(5).integers(0, 86_400, len(columns["hour"]))
    assert faults_of(tmp_path, log) == []


def test_how_long_something_took_is_no_clock(tmp_path, log):
    for columns in log.values():
        columns["play_time_ms"] = (10_000 * np.random.default_rng(5).lognormal(2, 1, len(columns["label"]))).astype(int)
        columns["label"] = (columns["play_time_ms"] % 97 > 30).astype(np.int8)
    assert faults_of(tmp_path, log) == []


def test_periods_that_overlap_a_little_are_a_remark(tmp_path, log):
    log["train-3"]["time"] = log["train-3"]["time"] + 600
    found = [finding for finding in findings_of(tmp_path, log) if finding.kind == "time_order"]
    assert [(finding.level, finding.columns) for finding in found] == [("remark", ("time",))]


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


@pytest.mark.parametrize("value", [3000, None], ids=["a value", "null"])
def test_a_column_of_one_value_is_a_fault(tmp_path, log, value):
    for columns in log.values():
        columns["city"] = pa.array([value] * len(columns["label"]), pa.int64())
    assert faults_of(tmp_path, log) == [("constant_column", ("city",))]


def test_a_column_of_one_value_in_one_file_is_a_fault(tmp_path, log):
    log["test"]["user"][:] = 1000
    assert ("constant_column", ("user",)) in faults_of(tmp_path, log)


# Copied columns.


def test_a_column_copied_to_another_is_a_fault(tmp_path, log):
    changed(log, "item", 1.0, lambda columns: columns["user"])
    assert ("copied_column", ("user", "item")) in faults_of(tmp_path, log)


def test_a_column_under_other_names_of_its_values_is_a_fault(tmp_path, log):
    for columns in log.values():
        columns["town"] = pa.array([f"town {7 * city % 101}" for city in columns["city"].tolist()])
    categories = ("user", "item", "city", "town")
    assert faults_of(tmp_path, log, categories) == [("copied_column", ("city", "town"))]


def test_a_column_that_another_one_determines_is_no_copy(tmp_path, log):
    for columns in log.values():
        columns["region"] = columns["city"] % 5
    assert faults_of(tmp_path, log, ("user", "item", "city", "region")) == []


# Numbers.


@pytest.mark.parametrize("factor", [1e2, 1e6])
def test_a_number_without_scale_is_a_fault(tmp_path, log, factor):
    for columns in log.values():
        columns["price"] = factor * columns["price"]
    assert faults_of(tmp_path, log, numbers=(Number(name="price"),)) == [("unscaled_number", ("price",))]


def test_a_number_that_training_refuses_is_a_fault_with_its_row(tmp_path, log):
    log["train-2"]["price"][17] = -999
    (fault,) = (finding for finding in findings_of(tmp_path, log) if finding.level == "fault")
    assert fault.kind == "unscaled_number"
    assert "train-2.parquet, column 'price'" in fault.text
    assert "at row 17" in fault.text


def test_a_heavy_tail_under_a_logarithm_is_no_fault(tmp_path, log):
    rng = np.random.default_rng(7)
    for columns in log.values():
        columns["price"] = np.floor(rng.pareto(0.7, len(columns["label"])))
    assert faults_of(tmp_path, log) == []


# Labels.


@pytest.mark.parametrize("label", [0, 1])
def test_a_file_of_lost_labels_is_a_fault(tmp_path, log, label):
    log["train-2"]["label"][:] = label
    assert ("label_rate", ("label",)) in faults_of(tmp_path, log)


def test_an_hour_of_lost_labels_is_a_fault_that_names_the_hour(tmp_path, log):
    for columns in log.values():
        columns["hour"] = columns["time"] // 60 % 24
        columns["label"] = np.where(columns["hour"] == 13, 0, columns["label"]).astype(np.int8)
    (fault,) = (finding for finding in findings_of(tmp_path, log) if finding.level == "fault")
    assert fault.kind == "label_rate"
    assert "hour 13" in fault.text


def test_rows_in_the_order_of_the_label_are_a_fault(tmp_path, log):
    for columns in log.values():
        order = np.argsort(columns["label"], kind="stable")
        columns.update({name: values[order] for name, values in columns.items()})
        columns.pop("time")
    assert faults_of(tmp_path, log) == [("label_rate", ("label",))]


def test_labels_of_one_kind_are_a_fault(tmp_path, log):
    for columns in log.values():
        columns["label"][:] = 0
    assert faults_of(tmp_path, log) == [("label_rate", ("label",))]


def test_rates_that_differ_by_file_as_days_do_are_no_fault(tmp_path):
    log = sound_log(files=dict.fromkeys([*(f"train-{n}" for n in range(8)), "test"], 2000))
    rng = np.random.default_rng(8)
    for columns in log.values():
        rate = 0.3 * np.exp(0.2 * rng.standard_normal())
        columns["label"] = (rng.random(2000) < rate).astype(np.int8)
    assert faults_of(tmp_path, log) == []


# The second epoch.


def lines(*validation, train=()):
    of = (("validation", validation), ("train", train))
    return [
        {"epoch": n + 1, "split": split, "auc": auc, "logloss": loss, "examples": 10_000}
        for split, values in of
        for n, (auc, loss) in enumerate(values)
    ]


def test_a_second_epoch_that_is_worse_for_good_is_a_fault():
    assert find_second_epoch(lines((0.70, 0.40), (0.65, 0.45), (0.64, 0.50)), 0.3)
    assert find_second_epoch(lines((0.70, 0.40), (0.65, 0.45), train=((0.6, 0.5), (0.9, 0.2))), 0.3)


def test_a_validation_that_falls_slowly_is_a_fault():
    """No epoch is worse than the one before it by more than the error, and the last is than the first."""
    (found,) = find_second_epoch(lines((0.6533, 0.57), (0.645, 0.572), (0.637, 0.578), (0.6283, 0.586)), 0.2)
    assert "AUC 0.6533, then 0.6450, then 0.6283 in epoch 4" in found.text
    assert find_second_epoch(lines((0.6533, 0.57), (0.645, 0.572), (0.6531, 0.571)), 0.2) == []


@pytest.mark.parametrize(
    "history",
    [
        lines((0.70, 0.40)),
        lines((0.70, 0.40), (0.72, 0.39), (0.65, 0.45)),
        lines((0.70, 0.40), (0.699, 0.401), (0.698, 0.401)),
        lines((0.70, 0.40), (0.65, 0.45), (0.71, 0.39)),
        lines((0.70, 0.40), (0.65, 0.45), train=((0.6, 0.2), (0.5, 0.5))),
    ],
    ids=["one epoch", "a better second", "within the error", "recovers", "training is worse as well"],
)
def test_epochs_that_do_otherwise_are_no_collapse(history):
    assert find_second_epoch(history, 0.3) == []


def test_a_missing_column_is_named(tmp_path, log):
    workflow = examined(tmp_path, log, ("user", "none"))
    with pytest.raises(ValueError, match="column 'none'"):
        findings_of(tmp_path, log, ("user", "none"))
    assert workflow.data.categories[1].name == "none"
