"""Rows read from files by offset and checked, whatever the gaps between them and whatever `pread` does."""

import ctypes
import errno
import os

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.data.row_files import files_of, tagged_rows
from support.faults.linux_reads import outcomes, put_beneath, run_checks

from pipeline.kernels import read_rows as module
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT, make_scratch, read_rows, read_rows_reference

pytestmark = pytest.mark.disk

NUM_WORDS = 6
ROW_BYTES = 4 * NUM_WORDS
FAR = 1 << 20
"""A gap that is longer than any file here."""


def read(descriptors, wanted, max_gap=FAR, scratch_bytes=None, alignment=1, num_words=NUM_WORDS):
    """`wanted`: sorted (file, row); they are read into the rows of `out` from the last to the first."""
    out = np.full((len(wanted) + 2, num_words), 0xFFFFFFFF, np.uint32)
    files_N = np.array([descriptors[f] for f, _ in wanted], np.int32)
    offsets_N = np.array([4 * num_words * r for _, r in wanted], np.int64)
    to_N = np.arange(len(wanted), dtype=np.int64)[::-1].copy()
    scratch = make_scratch(4 * num_words)[:scratch_bytes]
    result = read_rows(files_N, offsets_N, to_N, out, scratch, max_gap, alignment)
    return result, out[: len(wanted)][::-1], out[len(wanted) :]


@settings(deadline=None, max_examples=140)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 29)), max_size=40).map(sorted),
    damaged=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 29)), max_size=2),
    missing_bytes=st.sampled_from([0, 0, 1, ROW_BYTES, 5 * ROW_BYTES + 1, 30 * ROW_BYTES]),
    max_gap=st.sampled_from([0, 1, ROW_BYTES, ROW_BYTES + 1, 5 * ROW_BYTES, FAR]),
    scratch_bytes=st.sampled_from([ROW_BYTES, 2 * ROW_BYTES, 3 * ROW_BYTES + 4, 1 << 12]),
)
@example([(0, 0), (0, 2), (0, 9)], {(0, 1), (0, 8)}, 0, 0, ROW_BYTES)
@example([(0, 0), (0, 2), (0, 9)], {(0, 1), (0, 8)}, 0, FAR, 1 << 12)
@example([(0, 0), (0, 8), (0, 9)], {(0, 1), (0, 8)}, 0, FAR, 1 << 12)
def test_rows_and_blame_are_those_of_the_reference(wanted, damaged, missing_bytes, max_gap, scratch_bytes):
    """Three files, the last of them cut short; also twice the same row, and damaged rows that are only read over."""
    rows = [tagged_rows(file, 30, NUM_WORDS) for file in range(3)]
    for file, row in damaged:
        rows[file][row, 2] ^= np.uint32(1 << 9)
    contents = [file.tobytes() for file in rows]
    with files_of(*contents[:2], contents[2][: 30 * ROW_BYTES - missing_bytes]) as descriptors:
        result, got, untouched = read(descriptors, wanted, max_gap, scratch_bytes)
        files_N, offsets_N = [descriptors[f] for f, _ in wanted], [ROW_BYTES * r for _, r in wanted]
        assert result == read_rows_reference(files_N, offsets_N, np.arange(len(wanted)), np.empty_like(got))
    whole = wanted[: result[0]] if result[1] else wanted
    expected = np.array([rows[f][r] for f, r in whole], np.uint32).reshape(-1, NUM_WORDS)
    np.testing.assert_array_equal(got[: len(whole)], expected)
    assert (untouched == 0xFFFFFFFF).all()


def test_a_file_that_is_not_open_is_refused_with_its_errno():
    assert read([-1], [(0, 1), (0, 2)])[0] == (0, errno.EBADF)


def test_a_row_longer_than_a_scratch_can_be_read():
    num_words = (module.SCRATCH_BYTES + 3 * PAGE_BYTES) // 4
    rows = tagged_rows(0, 2, num_words)
    for alignment in (1, PAGE_BYTES):
        with files_of(rows) as descriptors:
            result, got, _ = read(descriptors, [(0, 0), (0, 1)], alignment=alignment, num_words=num_words)
        assert result == (-1, 0)
        np.testing.assert_array_equal(got, rows)


@pytest.mark.parametrize("num_rows", [5, 171, 1024])
@pytest.mark.parametrize("max_gap", [0, 3000, FAR])
def test_aligned_reads_work_on_a_partial_last_page(num_rows, max_gap):
    """The file ends with a page for 1,024 rows alone; 171 rows are the first that need a second page."""
    rows = tagged_rows(0, num_rows, NUM_WORDS)
    wanted = [(0, r) for r in sorted({0, 1, num_rows // 2, num_rows - 2, num_rows - 1})]
    with files_of(rows) as descriptors:
        result, got, _ = read(descriptors, wanted, max_gap, 2 * PAGE_BYTES, PAGE_BYTES)
        assert result == (-1, 0)
        np.testing.assert_array_equal(got, rows[[r for _, r in wanted]])
        result, _, _ = read(descriptors, [*wanted, (0, num_rows)], max_gap, 2 * PAGE_BYTES, PAGE_BYTES)
        assert result == (len(wanted), SHORT)


@pytest.mark.parametrize("max_gap", [0, FAR])
def test_direct_reads_are_aligned(tmp_path, max_gap):
    rows = tagged_rows(0, 1000, NUM_WORDS)
    wanted = [(0, r) for r in (0, 169, 170, 171, 500, 998, 999)]
    try:
        with files_of(rows, flags=os.O_DIRECT, folder=tmp_path) as descriptors:
            os.preadv(descriptors[0], [make_scratch(ROW_BYTES)[:PAGE_BYTES]], 0)
            result, got, _ = read(descriptors, wanted, max_gap, alignment=PAGE_BYTES)
            beyond = read(descriptors, [*wanted, (0, 1000)], max_gap, alignment=PAGE_BYTES)[0]
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    assert result == (-1, 0)
    np.testing.assert_array_equal(got, rows[[r for _, r in wanted]])
    assert beyond == (len(wanted), SHORT)


class FaultyDisk:
    """Stands in for libc's pread: a file of ten pages of rows, and what is to go wrong with it."""

    def __init__(self, interrupted=0, longest=1 << 30, bad=()):
        self.content = tagged_rows(0, 10 * PAGE_BYTES // ROW_BYTES, NUM_WORDS).tobytes()
        self.interrupted, self.longest, self.bad = interrupted, longest, bad
        self.calls = []

    def pread(self, _, address, num_bytes, offset):
        self.calls.append((offset, num_bytes))
        if self.interrupted:
            self.interrupted -= 1
            ctypes.set_errno(errno.EINTR)
            return -1
        if any(offset <= byte < offset + num_bytes for byte in self.bad):
            ctypes.set_errno(errno.EIO)
            return -1
        part = self.content[offset : offset + min(num_bytes, self.longest)]
        ctypes.memmove(address, part, len(part))
        return len(part)


def read_from(disk, rows, max_gap=FAR, alignment=1):
    put_beneath(disk)
    result, got, _ = read([0], [(0, r) for r in rows], max_gap, alignment=alignment)
    if result == (-1, 0):
        np.testing.assert_array_equal(
            got, np.frombuffer(disk.content[: 1700 * ROW_BYTES], np.uint32).reshape(-1, 6)[rows]
        )
    return result


def check_an_interrupted_read_is_given_up():
    assert read_from(FaultyDisk(interrupted=3), [5, 7]) == (-1, 0)


def check_a_short_read_is_taken_for_the_end_of_the_file():
    for alignment in (1, PAGE_BYTES):
        for longest in (PAGE_BYTES, PAGE_BYTES + 512, 3 * PAGE_BYTES - 1):
            disk = FaultyDisk(longest=longest)
            assert read_from(disk, [100, 700, 1500, 1600], alignment=alignment) == (-1, 0)
            assert all(offset % alignment == num_bytes % alignment == 0 for offset, num_bytes in disk.calls)
    assert read_from(FaultyDisk(longest=1), [3, 4]) == (-1, 0)


def check_a_read_beyond_the_end_never_ends():
    assert read_from(FaultyDisk(), [1600, 1705, 1706, 1707]) == (2, SHORT)


def check_a_bad_sector_blames_a_row_that_can_be_read():
    """Rows 0, 50 and 99 are read as one span."""
    for byte, expected in ((30 * ROW_BYTES, (-1, 0)), (50 * ROW_BYTES + 4, (1, errno.EIO)), (0, (0, errno.EIO))):
        disk = FaultyDisk(bad=[byte])
        assert read_from(disk, [0, 50, 99]) == expected
        assert disk.calls[0] == (0, 100 * ROW_BYTES)
    assert read_from(FaultyDisk(bad=[50 * ROW_BYTES]), [0, 50, 50, 99]) == (1, errno.EIO)


def check_rows_far_apart_are_read_together_or_near_ones_are_not():
    disk = FaultyDisk()
    assert read_from(disk, [0, 2, 4, 9], max_gap=ROW_BYTES + 1) == (-1, 0)
    assert disk.calls == [(0, 5 * ROW_BYTES), (9 * ROW_BYTES, ROW_BYTES)]


def test_a_faulty_disk_is_read_or_blamed_as_its_check_says():
    assert set(outcomes(__file__).values()) == {"ok"}


if __name__ == "__main__":
    run_checks({name: check for name, check in globals().items() if name.startswith("check_")})
