"""Unique keys are those that a workflow will see, counted whatever the order of parts and wherever a run is killed."""

import errno
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kills import killed_anywhere

from pipeline.kernels import hashing
from pipeline.kernels.hyperloglog import STANDARD_ERROR
from pipeline.prepare.parts import part_name
from pipeline.prepare.uniques import Uniques, counts, fold, hashes_of, save_part

BOUND = 40


def array_of(pieces, bound=BOUND):
    uniques = Uniques(bound)
    for piece in pieces:
        uniques.add(np.array(piece, np.uint64))
    return uniques.array


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=6), st.randoms())
def test_unique_keys_ignore_order_repetition_and_cuts(pieces, rng):
    keys = [key for piece in pieces for key in piece]
    once, again = sorted(set(keys)), keys + keys
    rng.shuffle(again)
    got = array_of(pieces)
    for other in (array_of([once]), array_of([[key] for key in again])):
        assert got.dtype == other.dtype
        np.testing.assert_array_equal(got, other)
    assert got.dtype == (np.uint64 if len(once) <= BOUND else np.uint8)


@pytest.mark.parametrize(("size", "exact"), [(0, True), (1, True), (100_000, True), (100_001, False), (400_000, False)])
def test_a_count_is_exact_up_to_the_bound_and_close_beyond_it(size, exact):
    keys = np.random.default_rng(3).integers(0, 2**64 - 1, size, np.uint64)
    uniques = Uniques(bound=100_000)
    for piece in np.array_split(np.concatenate([keys, keys]), 7):
        uniques.add(piece)
    count, is_exact = uniques.count()
    assert is_exact is exact
    assert abs(count - size) <= (0 if exact else 3 * STANDARD_ERROR * size)


COLUMNS = {
    "integers": pa.chunked_array([pa.array([5, None, 5], pa.int32()), pa.array([-1], pa.int32())]),
    "texts": pa.chunked_array([["", "b", None], ["b", "c"]]),
    "binary": pa.array([b"\xff", b"", None, b"\xff"]),
    # Of this dictionary one value is in no row, and the second chunk has another dictionary.
    "dictionary": pa.chunked_array([
        pa.DictionaryArray.from_arrays(pa.array([1, None, 1], pa.int32()), pa.array(["unused", "b"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["b", "c"])),
    ]),
    "lists": pa.array([[1, 2], None, [], [2, 9]], pa.list_(pa.int64())),
    "nothing": pa.chunked_array([], pa.string()),
    "nulls": pa.array([None, None], pa.string()),
}  # fmt: skip


VALUES = {
    "integers": [5, -1],
    "texts": [b"", b"b", b"c"],
    "binary": [b"\xff", b""],
    "dictionary": [b"b", b"c"],
    "lists": [1, 2, 9],
    "nothing": [],
    "nulls": [],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_keys_that_a_workflow_sees(name):
    salt = int(hashing.table_salt(name))
    key_of = {int: hashing.hash_integer_reference, bytes: hashing.hash_bytes_reference}
    expected = sorted(key_of[type(value)](value, salt) for value in VALUES[name])
    assert hashes_of(COLUMNS[name], name).tolist() == expected


def part_of(number):
    """Column "many" passes BOUND in all parts together, though in none of them; "a/b" does not."""
    rng = np.random.default_rng(number)
    return pa.table({"a/b": rng.integers(0, BOUND, 30), "many": rng.integers(0, 9 * BOUND, 30)})


NAMES, PARTS = ("a/b", "many"), range(6)


def keys_of_part(number):
    """Unique keys of each column, in another order for each part."""
    return [np.random.default_rng(number).permutation(hashes_of(part_of(number)[name], name)) for name in NAMES]


def of_all(folder):
    return counts(folder, NAMES, BOUND)


def test_counts_are_the_same_whenever_parts_are_folded(tmp_path):
    expected = None
    for min_bytes in (0, 3_000, 1 << 30):
        folder = tmp_path / f"{min_bytes}"
        folder.mkdir()
        for number in random.Random(min_bytes).sample(PARTS, len(PARTS)):
            save_part(folder, part_name(0, number), keys_of_part(number))
            fold(folder, NAMES, BOUND, min_bytes)
        expected = expected or of_all(folder)
        assert of_all(folder) == of_all(folder) == expected
        assert not list(folder.glob("part-*"))
    whole = pa.concat_tables(part_of(number) for number in PARTS)
    for name in NAMES:
        uniques = Uniques(BOUND)
        uniques.add(hashes_of(whole[name], name))
        assert expected[name] == uniques.count()
    assert [exact for _, exact in expected.values()] == [True, False]


@pytest.mark.prove
def test_a_kill_at_any_system_call_changes_no_count(tmp_path):
    def work(folder):
        for number in range(3):
            save_part(folder, part_name(0, number), keys_of_part(number))
            fold(folder, NAMES, BOUND, min_bytes=1_500)
        return of_all(folder)

    (tmp_path / "whole").mkdir()
    expected = work(tmp_path / "whole")
    num_kills = 0
    for folder in killed_anywhere(tmp_path, work):
        assert of_all(folder) == expected
        num_kills += 1
    assert num_kills > 30


def test_folding_bounds_the_files_of_parts(tmp_path):
    for number in range(40):
        save_part(tmp_path, part_name(0, number), keys_of_part(number))
        fold(tmp_path, NAMES, BOUND, min_bytes=20_000)
        assert sum(path.stat().st_size for path in tmp_path.glob("part-*")) < 20_000
    assert len(list(tmp_path.iterdir())) < 30


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space left"):
        save_part(tmp_path, part_name(0, 0), keys_of_part(0))
    assert not list(tmp_path.iterdir())


def test_arrays_that_are_no_keys_are_damage(tmp_path):
    save_part(tmp_path, part_name(0, 0), keys_of_part(0))
    for path in (tmp_path / f"{part_name(0, 0)}.npz", tmp_path / "folded.npz"):
        np.savez(path, parts=np.array([]), **{f"{n}": np.zeros(2) for n in range(len(NAMES))})
        with pytest.raises(ValueError, match=f"{path}: is damaged .expected .*keys.*the same command makes it again"):
            fold(tmp_path, NAMES, BOUND, min_bytes=0)
