"""Rows read from files by offset, whatever the gaps between them."""

import os
import tempfile
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.read_rows import read_rows, read_rows_reference

NUM_WORDS = 6
ROW_BYTES = 4 * NUM_WORDS


def made_rows(file, num_rows):
    return (1000 * file + np.arange(num_rows * NUM_WORDS, dtype=np.uint32)).reshape(num_rows, NUM_WORDS)


@contextmanager
def files_of(*rows):
    """Open descriptors of files that hold these arrays of rows."""
    with tempfile.TemporaryDirectory() as folder:
        descriptors = []
        for number, array in enumerate(rows):
            path = os.path.join(folder, str(number))
            with open(path, "wb") as file:
                file.write(array.tobytes())
            descriptors.append(os.open(path, os.O_RDONLY))
        try:
            yield descriptors
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def read(descriptors, wanted, max_gap, scratch_bytes):
    """`wanted`: sorted (file, row); they are read into the rows of `out` from the last to the first."""
    out = np.full((len(wanted) + 2, NUM_WORDS), 0xFFFFFFFF, np.uint32)
    files_N = np.array([descriptors[f] for f, _ in wanted], np.int32)
    offsets_N = np.array([ROW_BYTES * r for _, r in wanted], np.int64)
    to_N = np.arange(len(wanted), dtype=np.int64)[::-1].copy()
    code = read_rows(files_N, offsets_N, to_N, out, np.empty(scratch_bytes, np.uint8), max_gap)
    return code, out[: len(wanted)][::-1], out[len(wanted) :]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 29)), max_size=40),
    st.sampled_from([0, 1, ROW_BYTES, ROW_BYTES + 1, 5 * ROW_BYTES, 1 << 20]),
    st.sampled_from([ROW_BYTES, 2 * ROW_BYTES, 3 * ROW_BYTES + 4, 1 << 12]),
)
def test_a_row_read_within_a_span_is_another_one(wanted, max_gap, scratch_bytes):
    """Also twice the same row, and files numbered otherwise than they are opened."""
    wanted = sorted(wanted)
    rows = [made_rows(file, 30) for file in range(3)]
    with files_of(*rows) as descriptors:
        code, got, untouched = read(descriptors, wanted, max_gap, scratch_bytes)
        plain = np.empty_like(got)
        files_N, offsets_N = [descriptors[f] for f, _ in wanted], [ROW_BYTES * r for _, r in wanted]
        assert not wanted or read_rows_reference(files_N, offsets_N, np.arange(len(wanted)), plain) == -1
    assert code == -1
    np.testing.assert_array_equal(got, plain)
    np.testing.assert_array_equal(got, np.array([rows[f][r] for f, r in wanted], np.uint32).reshape(-1, NUM_WORDS))
    assert (untouched == 0xFFFFFFFF).all()


def test_a_row_larger_than_the_scratch_cannot_be_read():
    with files_of(made_rows(0, 3)) as descriptors:
        code, got, _ = read(descriptors, [(0, 0), (0, 2)], 1 << 20, 8)
    assert code == -1
    np.testing.assert_array_equal(got, made_rows(0, 3)[[0, 2]])


@pytest.mark.parametrize("max_gap", [0, 1 << 20])
@pytest.mark.parametrize("missing_bytes", [1, ROW_BYTES, ROW_BYTES + 1])
def test_a_short_file_blames_a_row_that_is_whole(max_gap, missing_bytes):
    """Rows 0, 4, 8 and 9 of a file of ten, whose end is missing: the first row that is not whole is named."""
    whole = made_rows(0, 10)
    short = np.frombuffer(whole.tobytes()[:-missing_bytes], np.uint8)
    with files_of(short) as descriptors:
        code, _, _ = read(descriptors, [(0, 0), (0, 4), (0, 8), (0, 9)], max_gap, 1 << 12)
    assert code == (3 if missing_bytes <= ROW_BYTES else 2)


def test_a_file_that_is_not_open_is_read_from():
    assert read([-1], [(0, 1)], 0, 64)[0] == 0
