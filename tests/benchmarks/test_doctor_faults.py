"""The faults of `benchmarks.doctor`: a fault is in as many rows as asked for, and all else is as in the clean copy."""

from dataclasses import replace

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
