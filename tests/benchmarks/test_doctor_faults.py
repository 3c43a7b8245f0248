"""The faults of `benchmarks.doctor`: a fault is in as many rows as asked for, and all else is as in the clean copy."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from support.depth import some

from benchmarks.doctor.copies import load
from benchmarks.doctor.faults import FORMS, STRENGTHS, VARIANTS, make_clean, plant, variants_for
from benchmarks.doctor.sets import synthetic

NAMES = [(kind, name) for kind, variants in VARIANTS.items() for name in variants]
MOVED = {"sampled_from_all", "validation_in_train", "random_split", "shuffled_days", "negatives_dropped"}
"""Variants that move, add or drop rows; the others change values where they are."""
FILES = {
    "sampled_from_all": "train", "validation_in_train": "train/last", "logged_twice": "test",
    "random_split": "train test", "shuffled_days": "train", "before_train": "test", "mixed_units": "train",
    "failed_join": "test", "default_value": "train/last", "stale_snapshot": "validation test",
    "zero_number": "train/middle", "zero_file": "train/middle", "lost_hours": "train",
    "negatives_dropped": "train/second", "delayed_clicks": "test",
}  # fmt: skip
"""Files that a variant may change; those that are not here add a column to all files, or change one."""


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    root = tmp_path_factory.mktemp("doctor")
    data = synthetic(root / "data", 3000)
    return {form: make_clean(data, form, root / form, 1) for form in FORMS}


@pytest.fixture
def planted(clean, tmp_path):
    def of(name, strength=0.1, seed=1):
        kind = next(kind for kind, variants in VARIANTS.items() if name in variants)
        return plant(kind, name, strength, clean[VARIANTS[kind][name].form], tmp_path / f"{name}{strength}{seed}", seed)

    return of


def before_and_after(clean, planted, column):
    """Values [N] of a column in the clean copy, None if it has none, and in the faulty one; N as in `load`."""
    before, after = load(clean[VARIANTS[planted.kind][planted.variant].form]).table, load(planted.workflow).table
    return before[column].to_pylist() if column in before.column_names else None, after[column].to_pylist()


def rows_of(workflow, *splits, but=()):
    copy = load(workflow)
    table = copy.table.take(pa.array(copy.rows(*splits))).drop_columns(list(but))
    return list(zip(*table.to_pydict().values(), strict=True))


def may_change(copy, where):
    names = {file for split in ("train", "validation", "test") if split in where for file in copy.splits[split]}
    train = copy.splits["train"]
    some_of = {"train/last": train[-1:], "train/middle": train[len(train) // 2 :][:1], "train/second": train[1::2]}
    return set(some_of.get(where, names))


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_a_fault_is_in_as_many_rows_as_asked_for(kind, name, planted):
    for strength in STRENGTHS:
        one = planted(name, strength)
        assert (one.kind, one.variant, one.strength) == (kind, name, strength)
        assert one.affected == max(1, round(strength * one.of))


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_all_else_is_as_in_the_clean_copy(kind, name, clean, planted):
    one = planted(name)
    source = clean[VARIANTS[kind][name].form]
    before, after = load(source), load(one.workflow)
    assert list(after.files) == list(before.files)
    if where := FILES.get(name):
        allowed = may_change(before, where)
        for file in before.files:
            same = (source.data.root / file).read_bytes() == (one.workflow.data.root / file).read_bytes()
            assert same == (file not in allowed), file
    if name not in MOVED:
        columns = set(before.table.column_names) - set(one.columns)
        if name == "logged_twice":
            columns = {"timestamp"}
        for column in columns:
            assert after.table[column].equals(before.table[column]), column
    new = {category.name for category in one.workflow.data.categories} | {n.name for n in one.workflow.data.numbers}
    old = {category.name for category in source.data.categories} | {n.name for n in source.data.numbers}
    assert new - old <= set(one.columns)


@pytest.mark.parametrize(("kind", "name"), some(NAMES, *NAMES[::5], several=True))
def test_the_same_seed_makes_the_same_files(kind, name, clean, planted, tmp_path):
    one = planted(name)
    again = plant(kind, name, 0.1, clean[VARIANTS[kind][name].form], tmp_path / "again", 1)
    other = planted(name, seed=2)

    def contents(made):
        return [(made.workflow.data.root / name).read_bytes() for name in load(made.workflow).files]

    assert contents(one) == contents(again)
    assert replace(one, workflow=again.workflow) == again
    # The last rows of a file are those of any seed.
    assert (contents(one) != contents(other)) == (name != "delayed_clicks")


def test_a_clean_copy_shares_no_rows_and_is_ordered_by_time(clean):
    for form, workflow in clean.items():
        assert not set(rows_of(workflow, "train")) & set(rows_of(workflow, "validation", "test"))
        if form in ("hour", "timestamp", "event_time"):
            copy = load(workflow)
            times = copy.table.take(pa.array(copy.rows("train", "validation", "test")))[form].to_pylist()
            assert times == sorted(times)


def test_a_control_has_the_column_without_the_fault(clean, planted):
    for kind, name, variant in variants_for(clean["plain"]):
        if variant.control:
            control = planted(name, 0.0)
            assert control.affected == 0
            assert load(control.workflow).table.column_names[-1] in control.columns, (kind, name)


def test_a_leaking_column_tells_the_label_in_the_planted_rows(clean, planted):
    labels = np.array(before_and_after(clean, planted("after_click"), "label")[1])
    seconds = np.array(before_and_after(clean, planted("after_click"), "dwell_seconds")[1], np.float64)
    logged = ~np.isnan(seconds)
    assert logged.sum() == round(0.1 * len(labels))
    assert (seconds[logged & (labels == 1)] > 0).all()
    assert (seconds[logged & (labels == 0)] > 0).mean() < 0.1
    ids = np.array(before_and_after(clean, planted("id_of_positives"), "conversion_id")[1])
    assert np.count_nonzero(ids) == round(0.1 * labels.sum())
    assert labels[ids > 0].all()
    for name, column in (("own_click_counted", "session_clicks"), ("target_encoding", "ctr_c0_c1")):
        honest, leaking = (np.array(before_and_after(clean, planted(name, share), column)[1]) for share in (0.0, 0.1))
        differ = honest != leaking
        assert 0 < differ.sum() <= round(0.1 * len(labels))
        moved = leaking - honest
        assert moved[differ & (labels == 1)].mean() > 0 >= moved[differ & (labels == 0)].sum()


@pytest.mark.parametrize(("name", "split"), [("sampled_from_all", "test"), ("validation_in_train", "validation")])
def test_planted_rows_are_in_both_splits(name, split, clean, planted):
    one = planted(name)
    shared = set(rows_of(one.workflow, split)) & set(rows_of(one.workflow, "train"))
    assert len(shared) == one.affected
    added = Counter(rows_of(one.workflow, "train")) - Counter(rows_of(clean["plain"], "train"))
    assert sum(added.values()) == one.affected


def test_times_of_the_planted_rows_are_out_of_order(clean, planted):
    one = load(planted("random_split").workflow)
    hours = one.table["hour"].to_numpy()
    assert (hours[one.rows("test")] < 14102900).sum() == round(0.1 * len(one.rows("test")))
    assert (hours[one.rows("train")] >= 14102900).sum() == round(0.1 * len(one.rows("test")))
    one = load(planted("before_train").workflow)
    stamps = one.table["timestamp"].to_numpy()
    assert (stamps[one.rows("test")] < stamps[one.rows("train")].min()).mean() == pytest.approx(0.1)
    one = load(planted("mixed_units").workflow)
    stamps = one.table["timestamp"].to_numpy()[one.rows("train")]
    assert (stamps > 1e12).mean() == pytest.approx(0.1)
    assert datetime.fromtimestamp(stamps.max() / 1000, UTC).year == 2014


@pytest.mark.parametrize(
    ("name", "splits", "value"),
    [("failed_join", ("test",), None), ("default_value", ("train",), -1), ("zero_number", ("train",), 0.0)],
)
def test_planted_rows_have_one_value(name, splits, value, clean, planted):
    one = planted(name)
    before, after = before_and_after(clean, one, one.columns[0])
    changed = [row for row, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert {after[row] for row in changed} == {value}
    assert len(changed) == one.affected
    assert set(changed) <= set(load(one.workflow).rows(*splits).tolist())


@pytest.mark.parametrize("name", VARIANTS["copied_column"])
def test_planted_rows_have_the_value_of_the_other_column(name, planted):
    one = planted(name, 1.0)
    column, source = (load(one.workflow).table[column].to_pylist() for column in one.columns)
    pairs = set(zip(column, source, strict=True))
    # Each value has one name, as in a copy.
    assert len(pairs) == len(set(column)) == len(set(source))


@pytest.mark.parametrize(
    ("name", "wild", "share"),
    [
        ("raw_counts", lambda x: x >= 1000, 0.1),
        ("nanoseconds", lambda x: x > 1e18, 0.1),
        ("overflow", lambda x: x > 1e29, 0.1),
        ("minus_999", lambda x: x == -999, 0.05),
    ],
)
def test_planted_rows_have_wild_numbers(name, wild, share, clean, planted):
    one = planted(name)
    values = np.array(before_and_after(clean, one, one.columns[0])[1], np.float64)
    assert wild(values).mean() == pytest.approx(share)
    assert (np.abs(values[~wild(values)]) < 1000).all()
    number = one.workflow.data.numbers[-1]
    assert (number.name, number.log1p, number.shift) == (one.columns[0], False, 0.0)


def test_labels_are_lost_where_planted(clean, planted):
    for name in ("zero_file", "delayed_clicks", "lost_hours"):
        before, after = (np.array(x) for x in before_and_after(clean, planted(name, 1.0), "label"))
        copy = load(planted(name, 0.1).workflow)
        train = copy.splits["train"]
        rows = {
            "zero_file": copy.files[train[3]],
            "delayed_clicks": copy.rows("test"),
            "lost_hours": copy.rows("train"),
        }
        assert not after[rows[name]].any()
        others = np.setdiff1d(copy.everything(), rows[name])
        assert (after[others] == before[others]).all()


@pytest.mark.parametrize(("name", "rows_an_id"), [("request_id", 1), ("session_id", 3)])
def test_planted_rows_have_an_id_of_their_own(name, rows_an_id, planted):
    one = planted(name)
    values = np.array(load(one.workflow).table[name].to_pylist())
    assert (values >= 50).sum() == one.affected == round(0.1 * len(values))
    ids = np.array(load(planted(name, 1.0).workflow).table[name].to_pylist())
    assert len(ids) / len(np.unique(ids)) == pytest.approx(rows_an_id, rel=0.1)
