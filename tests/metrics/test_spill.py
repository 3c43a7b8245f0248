"""Entries that are sorted in bounded memory, of one word and of two."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.metrics.spill import SortedSpill, merge_runs

few = settings(max_examples=60, deadline=None)
LARGE = (1 << 64) - 9
words = st.integers(0, 9).map(lambda n: n if n < 5 else n + LARGE - 5)


def entries_of(num_words, **size):
    return st.lists(st.tuples(*[words] * num_words), **size)


def columns(entries, num_words):
    return np.array(entries, np.uint64).reshape(-1, num_words).T


def taken(spill):
    return [tuple(entry) for part in spill.take() for entry in part.T.tolist()]


@few
@given(st.data(), st.integers(1, 2), st.integers(1, 9), st.integers(1, 9))
def test_every_entry_is_returned_in_order(data, num_words, bound, batch):
    entries = data.draw(entries_of(num_words, max_size=40))
    with tempfile.TemporaryDirectory() as folder:
        spill = SortedSpill(Path(folder), bound, num_words)
        for _ in range(2):
            for begin in range(0, len(entries), batch):
                spill.add(*columns(entries[begin : begin + batch], num_words))
            assert taken(spill) == sorted(entries)


@few
@given(st.data(), st.integers(1, 2), st.integers(1, 12))
def test_a_merge_yields_every_entry_in_order_and_in_bounded_parts(data, num_words, chunk):
    runs = [columns(sorted(run), num_words) for run in data.draw(st.lists(entries_of(num_words), max_size=6))]
    parts = list(merge_runs(runs, chunk))
    together = sorted(tuple(entry) for run in runs for entry in run.T.tolist())
    assert [tuple(entry) for part in parts for entry in part.T.tolist()] == together
    assert all(0 < part.shape[1] <= max(chunk, len(runs)) for part in parts)


@few
@given(st.data(), st.integers(1, 2), st.integers(1, 9), st.integers(1, 5))
def test_entries_of_added_runs_are_returned_in_order(data, num_words, bound, piece):
    """Runs that come sorted, piece by piece, some of them empty, beside entries of one's own."""
    own, *runs = data.draw(st.lists(entries_of(num_words, max_size=20), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        spill = SortedSpill(Path(folder) / "made", bound, num_words)
        for run in runs:
            words = columns(sorted(run), num_words)
            spill.add_run(words[:, begin : begin + piece] for begin in range(0, len(run), piece))
        spill.add(*columns(own, num_words))
        assert taken(spill) == sorted([*own, *(entry for run in runs for entry in run)])
        assert list((Path(folder) / "made").glob("*")) == []


def test_memory_stays_within_the_bound_and_files_are_made_on_demand(tmp_path):
    spill = SortedSpill(tmp_path / "made" / "on_demand", bound=100, num_words=2)
    spill.add(*np.zeros((2, 90), np.uint64))
    assert not (tmp_path / "made").exists()
    spill.add(*np.zeros((2, 1_000), np.uint64))
    assert spill.room == 100
    assert [run.shape for run in spill.runs] == [(2, 100)] * 10


def test_a_spilled_run_leaves_no_name_in_its_folder(tmp_path):
    spill = SortedSpill(tmp_path / "spill", bound=10)
    spill.add(np.arange(100, dtype=np.uint64))
    assert spill.runs
    assert list((tmp_path / "spill").iterdir()) == []
