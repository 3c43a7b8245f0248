"""Merged runs have each value once with its count, in order of keys, in the memory of a few blocks."""

import tempfile
import tracemalloc
from collections import Counter
from itertools import chain
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
from pipeline.serving.value_runs import few, merge_counts, write_run

NAME = "a/b"


def written(folder, parts):
    """Paths of the runs of these columns."""
    paths = [folder / f"{number}.runs" for number in range(len(parts))]
    for path, column in zip(paths, parts, strict=True):
        write_run(path, NAME, [counted(column, NAME)])
    (folder / "merged").mkdir()
    return paths


def merged(paths):
    """Parts of the run that these runs have together."""
    return merge_counts(few(paths, NAME, paths[0].parent / "merged"), NAME)


VALUES = {"binary": st.binary(max_size=3), "int64": st.integers(-3, 20)}


@examples(30, 150)
@given(st.data())
def test_each_value_is_there_once_with_its_count(data):
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    parts = data.draw(st.lists(st.lists(st.none() | VALUES[kind], max_size=15), min_size=1, max_size=7))
    few_keys = data.draw(st.sampled_from([1 << 63, 1, 3]))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(value_runs, "RUN_BLOCK_BYTES", 100)
        patch.setattr(value_runs, "FAN_IN", 2)
        for module in (counts, value_runs):
            patch.setattr(module, "keys_of", lambda values, name: keys_of(values, name) % np.uint64(few_keys))
        found = joined(list(merged(written(Path(folder), [pa.array(part, kind) for part in parts]))))
    values = found.values_U.to_pylist()
    assert len(set(values)) == len(values)
    expected = Counter(value for value in chain(*parts) if value is not None)
    assert dict(zip(values, found.counts_U.tolist(), strict=True)) == expected
    # Without nulls, of which none is counted.
    places = list(zip(found.keys_U.tolist(), values, strict=True))
    assert places == sorted(places)


@pytest.mark.prove
def test_memory_stays_bounded_as_the_values_grow(tmp_path, monkeypatch):
    """Merged within 6 MB, though values, keys and counts take 50."""
    monkeypatch.setattr(value_runs, "RUN_BLOCK_BYTES", 64 << 10)
    monkeypatch.setattr(value_runs, "FAN_IN", 8)
    rows, num_parts = 20_000, 50
    names = (f"a text of some length, number {n:07}" for n in range(rows * num_parts))
    parts = [pa.array([next(names) for _ in range(rows)]) for _ in range(num_parts)]
    assert num_parts * (parts[0].nbytes + 16 * rows) > 9 * 6e6
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    paths = written(tmp_path, parts)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        assert sum(part.size for part in merged(paths)) == rows * num_parts
        peak = pool.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert peak < 6e6
