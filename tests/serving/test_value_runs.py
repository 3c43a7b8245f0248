"""Values of a table that are on disk are read once each, by ranges of keys, in the memory of a run and a range."""

import tempfile
import tracemalloc
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.prepare import counts
from pipeline.prepare.counts import counted, joined, keys_of
from pipeline.serving import value_runs
from pipeline.serving.sorted_runs import key_ranges
from pipeline.serving.value_runs import values_between, write_runs

NAME = "a/b"
VALUES = {"binary": st.binary(max_size=3), "int64": st.integers(-3, 20)}


@examples(30, 150)
@given(st.data())
def test_each_value_is_read_once_from_the_range_of_its_key(data):
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    parts = data.draw(st.lists(st.lists(st.none() | VALUES[kind], max_size=15), min_size=1, max_size=7))
    few_keys = data.draw(st.sampled_from([None, 1, 3]))
    num_ranges = data.draw(st.sampled_from([1, 2, 8]))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(value_runs, "RUN_BYTES", 200)
        if few_keys:
            # Different values share a key.
            patch.setattr(counts, "keys_of", lambda values, name: keys_of(values, name) % np.uint64(few_keys))
        runs = write_runs(Path(folder), (counted(pa.array(part, kind), NAME) for part in parts))
        ranges = list(key_ranges(num_ranges))
        found = [values_between(runs, begin, end) for begin, end in ranges]
    for of_range, (begin, end) in zip(found, ranges, strict=True):
        assert all(begin <= key < end for key in of_range.keys_U.tolist())
        assert all(first <= second for first, second in pairwise(of_range.keys_U.tolist()))
    whole = joined(found)
    values = whole.values_U.to_pylist()
    assert len(set(values)) == len(values)
    expected = Counter(value for value in chain(*parts) if value is not None)
    assert dict(zip(values, whole.counts_U.tolist(), strict=True)) == expected


def test_values_that_occur_again_and_again_are_in_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(value_runs, "RUN_BYTES", 10_000)
    parts = (counted(pa.array(range(200)), NAME) for _ in range(50))
    (run,) = write_runs(tmp_path, parts)
    assert set(values_between([run], 0, 1 << 64).counts_U.tolist()) == {50}


@pytest.mark.prove
def test_memory_stays_bounded_as_the_values_grow(tmp_path, monkeypatch):
    """Sorted and read within 12 MB, though values, keys and counts take 50."""
    monkeypatch.setattr(value_runs, "RUN_BYTES", 2 << 20)
    rows, num_parts = 20_000, 50

    def parts():
        for part in range(num_parts):
            first = part * rows
            yield counted(pa.array([f"a text of some length, number {n:07}" for n in range(first, first + rows)]), NAME)

    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        runs = write_runs(tmp_path, parts())
        assert sum(run.stat().st_size for run in runs) > 50e6
        assert sum(values_between(runs, *of).size for of in key_ranges(32)) == rows * num_parts
        peak = pool.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert peak < 12e6
