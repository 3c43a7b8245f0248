"""Rows read with many reads in flight: the rows, and the blame, of the plain reference, whatever the system does."""

import errno
import os

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.data.row_files import files_of, tagged_rows
from support.faults.linux_reads import NO_FILE, System, outcomes, put_beneath, run_checks

from pipeline.kernels.in_flight import (
    IN_FLIGHT_WORDS,
    STATE_WORDS,
    UNFINISHED,
    close_context,
    open_context,
    read_in_flight,
)
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT, WRONG_TAG, read_rows_reference
from pipeline.machine.limits import aligned_empty

pytestmark = pytest.mark.disk

NUM_WORDS, NUM_ROWS = 150, 60
"""600 bytes a row: six or seven touch a page, and 60 rows 9 pages, the last of them in part."""
ROW_BYTES = 4 * NUM_WORDS
FAR = 1 << 20
"""A gap that is longer than any file here."""


def made_rows(file=0):
    return tagged_rows(file, NUM_ROWS, NUM_WORDS)


def read(context, files_N, rows_N, max_gap=FAR, num_buffers=4, buffer_pages=2):
    """Result, and the rows read, which lie in `out` from the last to the first."""
    out = np.full((len(rows_N) + 1, NUM_WORDS), 0xFFFFFFFF, np.uint32)
    to_N = np.arange(len(rows_N), dtype=np.int64)[::-1].copy()
    buffers = aligned_empty((num_buffers, buffer_pages * PAGE_BYTES), np.uint8, PAGE_BYTES)
    work = np.full(num_buffers * IN_FLIGHT_WORDS, 77, np.int64)
    files_N, offsets_N = np.array(files_N, np.int32), ROW_BYTES * np.array(rows_N, np.int64)
    state, result = np.zeros(STATE_WORDS, np.int64), (0, UNFINISHED)
    while result[1] == UNFINISHED:
        result = read_in_flight(context, files_N, offsets_N, to_N, out, buffers, max_gap, work, state)
    assert (out[-1] == 0xFFFFFFFF).all()
    return result, out[:-1][::-1]


@pytest.fixture(scope="module")
def context():
    context = open_context(16)
    assert context != 0
    yield context
    close_context(context)


@settings(deadline=None, max_examples=150)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, NUM_ROWS - 1)), max_size=60).map(sorted),
    damaged=st.sets(st.tuples(st.integers(0, 2), st.integers(0, NUM_ROWS - 1)), max_size=2),
    missing_bytes=st.sampled_from([0, 0, 1, ROW_BYTES, 5000, NUM_ROWS * ROW_BYTES]),
    max_gap=st.sampled_from([-ROW_BYTES, 0, 1, ROW_BYTES + 1, 3 * ROW_BYTES, FAR]),
    num_buffers=st.sampled_from([1, 2, 5, 16]),
    buffer_pages=st.sampled_from([2, 3, 20]),
)
@example([(0, 1), (0, 3), (1, 0)], {(0, 3), (1, 0)}, 0, 0, 1, 2)
def test_rows_and_blame_are_those_of_the_reference(
    context, wanted, damaged, missing_bytes, max_gap, num_buffers, buffer_pages
):
    """Three files, the last of them cut short; rows may be asked for twice."""
    contents = [made_rows(file) for file in range(3)]
    for file, row in damaged:
        contents[file][row, 7] ^= np.uint32(1 << 9)
    *whole, last = (rows.tobytes() for rows in contents)
    with files_of(*whole, last[: len(last) - missing_bytes]) as files:
        files_N, rows_N = [files[file] for file, _ in wanted], [row for _, row in wanted]
        plain = np.empty((len(wanted), NUM_WORDS), np.uint32)
        expected = read_rows_reference(files_N, [ROW_BYTES * row for row in rows_N], range(len(wanted)), plain)
        result, got = read(context, files_N, rows_N, max_gap, num_buffers, buffer_pages)
    assert result == expected
    whole = result[0] if result[1] else len(wanted)
    np.testing.assert_array_equal(got[:whole], plain[:whole])


@pytest.mark.parametrize("max_gap", [0, FAR])
def test_reads_past_the_page_cache_are_aligned(context, tmp_path, max_gap):
    wanted = [0, 6, 7, 30, 58, 59]
    try:
        with files_of(made_rows(), flags=os.O_DIRECT, folder=tmp_path) as files:
            result, got = read(context, files * 6, wanted, max_gap)
            beyond = read(context, files * 7, [*wanted, NUM_ROWS], max_gap)[0]
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    assert result == (-1, 0)
    np.testing.assert_array_equal(got, made_rows()[wanted])
    assert beyond == (6, SHORT)


def test_a_file_that_cannot_be_read_is_told_with_its_errno(context, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read(context, [folder] * 3, [0, 1, 50])[0] == (0, errno.EISDIR)
    os.close(folder)
    assert read(context, [-1] * 2, [3, 50], 0)[0] == (0, errno.EBADF)


def check(wanted=range(0, NUM_ROWS, 4), content=None, expected=(-1, 0), alone=(), max_gap=0, **faults):
    """Without gaps to read over each row is one read; rows 0, 4, 8 lie on pages 0, 0 and 1, 1 and 2."""
    system = System((made_rows() if content is None else content).tobytes(), **faults)
    put_beneath(system)
    result, got = read(1, [NO_FILE] * len(wanted), list(wanted), max_gap)
    assert result == expected
    assert system.waiting == []
    assert system.most <= 4
    assert system.alone == list(alone)
    if expected == (-1, 0):
        np.testing.assert_array_equal(got, made_rows()[list(wanted)])
    return system


def check_as_many_reads_are_in_flight_as_there_are_buffers():
    assert check().most == 4


def check_reads_taken_one_by_one_are_all_made():
    check(takes=1)


def check_an_interrupted_wait_is_taken_up_again():
    check(interrupts=5)


def check_reads_that_are_refused_are_made_alone():
    check([0, 20, 40], alone=[0, 2, 5], refuses_after=0)
    check([0, 20, 40], alone=[5], refuses_after=2)


def check_reads_that_failed_or_were_cut_short_are_made_again_alone():
    check([0, 20, 40], alone=[5, 2], results={2: -errno.EAGAIN, 5: 512})
    check([0, 1, 20], alone=[0, 0], results={0: 700}, max_gap=FAR)


def check_of_damaged_rows_the_first_is_blamed_whichever_is_read_first():
    """Four reads are in flight, and finish in reverse."""
    rows = made_rows()
    rows[[10, 30], 3] += np.uint32(1)
    check([0, 10, 20, 30, 40], rows, (1, WRONG_TAG))
    check([30, 31, 32, 33, 34], rows, (0, WRONG_TAG))


def test_a_system_that_refuses_reads_is_asked_as_its_check_says():
    assert set(outcomes(__file__).values()) == {"ok"}


if __name__ == "__main__":
    run_checks({name: check for name, check in globals().items() if name.startswith("check_")})
