"""Rows read from chunk files: any, in any order, from more files than may be open, and what is said of bad ones."""

import errno
import gc
import os
import re
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.row_files import flip, num_open
from support.depth import some
from support.oracle.tier_contract import made_rows

from pipeline.kernels.in_flight import UNFINISHED
from pipeline.kernels.tag import set_tags
from pipeline.storage import reads
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.reader import Reader, WrongTag
from pipeline.storage.reads import part_bounds

pytestmark = pytest.mark.disk

WORDS = 7
ROW_BYTES = 4 * WORDS
CHUNK = 8
SPEEDS = [DiskSpeed(0, 1e9), DiskSpeed(1e-6, 1e8), DiskSpeed(1, 1e9)]
"""One read a row; gaps of up to 100 bytes read over; each file in one go."""


def written(folder, num_chunks, chunk_rows=CHUNK):
    """Rows, and the function that names the files they were written to."""
    rows = made_rows(num_chunks * chunk_rows, WORDS)
    set_tags(rows)
    for chunk in range(num_chunks):
        (folder / f"c.{chunk}.0").write_bytes(rows[chunk * chunk_rows : (chunk + 1) * chunk_rows].tobytes())
    return rows, lambda chunk: folder / f"c.{chunk}.0"


@pytest.fixture(params=some(["cached", "direct", "direct, without asynchronous reads"], "cached", "direct"))
def direct(request, tmp_path, monkeypatch):
    """Whether the reader bypasses the page cache; each way to read is tried."""
    if request.param == "cached":
        return False
    try:
        os.close(os.open(tmp_path, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    if request.param != "direct":
        monkeypatch.setattr(reads, "open_context", lambda _: 0)
    return True


@pytest.fixture
def rows_and_reader(tmp_path, direct):
    rows, file_of = written(tmp_path, 10)
    reader = Reader(file_of, WORDS, CHUNK, SPEEDS[1], direct)
    yield rows, reader
    reader.close()


def gathered(reader, at, number_type=np.int64):
    out = np.full((len(at), WORDS), 0xA5A5A5A5, np.uint32)
    reader.gather(np.array(at, number_type), out)
    return out


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("number_type", some([np.int32, np.int64], np.int32))
def test_rows_never_depend_on_order_repetition_or_disk_speed(tmp_path, speed, number_type, direct):
    rows, file_of = written(tmp_path, 10)
    reader = Reader(file_of, WORDS, CHUNK, speed, direct)

    @settings(deadline=None, max_examples=25, database=None)
    @given(st.lists(st.integers(0, len(rows) - 1), max_size=60))
    def check(at):
        np.testing.assert_array_equal(gathered(reader, at, number_type), rows[at])

    check()
    reader.close()


@pytest.mark.parametrize(("num_chunks", "chunk_rows"), [(3, 2048), (150, 40)])
@pytest.mark.parametrize("speed", SPEEDS)
def test_many_rows_are_returned_in_the_order_asked_for(tmp_path, num_chunks, chunk_rows, speed, direct):
    rows, file_of = written(tmp_path, num_chunks, chunk_rows)
    reader = Reader(file_of, WORDS, chunk_rows, speed, direct)
    at = np.random.default_rng(0).integers(0, len(rows), 5000)
    np.testing.assert_array_equal(gathered(reader, at), rows[at])
    reader.close()


def test_direct_reads_are_asynchronous_and_others_use_threads():
    assert isinstance(reads.reads_of(ROW_BYTES, 0, direct=False), reads.ReadsByThreads)
    in_flight = reads.reads_of(ROW_BYTES, 0, direct=True)
    assert isinstance(in_flight, reads.ReadsInFlight)
    in_flight.close()
    in_flight.close()


def test_closing_waits_for_a_read_and_ends_later_ones(monkeypatch):
    """A worker closes its log in another thread if the run ends early."""
    begun, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    def slow_read(*_):
        begun.set()
        assert may_end.wait(20)
        assert not closed.is_set()
        return -1, 0

    monkeypatch.setattr(reads, "read_in_flight", slow_read)
    in_flight = reads.reads_of(ROW_BYTES, 0, direct=True)
    nothing = np.empty(0, np.int64)
    with ThreadPoolExecutor(2) as threads:
        reading = threads.submit(in_flight.read, nothing, nothing, nothing, nothing)
        assert begun.wait(20)
        closing = threads.submit(lambda: (in_flight.close(), closed.set()))
        assert not closed.wait(0.1)
        may_end.set()
        assert reading.result(20) == (-1, 0)
        closing.result(20)
    with pytest.raises(RuntimeError, match="closed"):
        in_flight.read(nothing, nothing, nothing, nothing)


def test_a_forgotten_or_failed_reader_gives_back_its_share(monkeypatch):
    given_back = []
    monkeypatch.setattr(reads, "open_context", lambda _: 7)
    monkeypatch.setattr(reads, "close_context", given_back.append)
    in_flight = reads.reads_of(ROW_BYTES, 0, direct=True)
    del in_flight
    gc.collect()
    assert given_back == [7]

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(reads, "read_in_flight", fails)
    in_flight = reads.reads_of(ROW_BYTES, 0, direct=True)
    with pytest.raises(MemoryError):
        in_flight.read(*[np.empty(0, np.int64)] * 4)
    assert given_back == [7, 7]
    in_flight.close()
    assert given_back == [7, 7]


def test_buffers_outlive_a_reader_that_was_interrupted(monkeypatch):
    """The system writes into them for as long as reads are in flight, and closing waits for these."""
    done = threading.Event()
    monkeypatch.setattr(reads, "close_context", lambda _: done.wait(20))
    monkeypatch.setattr(reads, "WAIT_SECONDS", 0.1)
    buffers = []

    def interrupted(*args):
        if buffers:
            raise KeyboardInterrupt
        buffers.extend(weakref.ref(array) for array in args if isinstance(array, np.ndarray) and array.ndim == 2)
        return 0, UNFINISHED

    monkeypatch.setattr(reads, "read_in_flight", interrupted)
    in_flight = reads.reads_of(ROW_BYTES, 0, direct=True)
    with pytest.raises(KeyboardInterrupt):
        in_flight.read(np.zeros(1, np.int32), *[np.zeros(1, np.int64)] * 3)
    in_flight.close()
    del in_flight
    gc.collect()
    assert buffers
    assert all(buffer() is not None for buffer in buffers)
    done.set()
    end = time.monotonic() + 10
    while any(buffer() is not None for buffer in buffers) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert not any(buffer() is not None for buffer in buffers)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_parts_cover_every_row_and_keep_chunks_whole(rows_of_chunks):
    ends = np.cumsum(rows_of_chunks)
    firsts, num_rows = np.append(0, ends[:-1]), int(ends[-1])
    bounds = part_bounds(firsts, num_rows)
    assert (bounds[0], bounds[-1]) == (0, num_rows)
    assert (np.diff(bounds) > 0).all()
    if len(firsts) >= 64:
        assert set(bounds) <= {*firsts, num_rows}


def test_open_files_stay_within_their_limit(rows_and_reader, tmp_path, monkeypatch):
    rows, reader = rows_and_reader
    monkeypatch.setattr(reader, "_max_files", 3)
    rng = np.random.default_rng(1)
    for num in (80, 2, 5, 1, 80, 17):
        at = rng.permutation(len(rows))[:num]
        np.testing.assert_array_equal(gathered(reader, at), rows[at])
        assert num_open(tmp_path) <= 3
    reader.close()
    assert num_open(tmp_path) == 0
    reader.close()


def test_an_open_file_that_a_call_needs_stays_open(rows_and_reader, monkeypatch):
    _, reader = rows_and_reader
    monkeypatch.setattr(reader, "_max_files", 3)
    gathered(reader, [8 * CHUNK, 9 * CHUNK, 5 * CHUNK])
    opened, open_file = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(Path(path).name) or open_file(path, flags))
    gathered(reader, [0, 8 * CHUNK, 9 * CHUNK])
    assert opened == ["c.0.0"]


def test_a_forgotten_chunk_is_read_from_its_new_file(rows_and_reader, tmp_path):
    rows, reader = rows_and_reader
    gathered(reader, range(3 * CHUNK))
    reader.forget([1, 7])
    assert num_open(tmp_path) == 2
    (tmp_path / "c.1.0").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape("c.1.0")):
        gathered(reader, [0, CHUNK])
    changed = rows[CHUNK : 2 * CHUNK][::-1]
    (tmp_path / "c.1.0").write_bytes(changed.tobytes())
    np.testing.assert_array_equal(gathered(reader, [CHUNK, 0]), [changed[0], rows[0]])


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize(("size", "offset"), [(5 * ROW_BYTES - 1, 4), (5 * ROW_BYTES, 6), (0, 0)])
def test_a_truncated_chunk_is_refused_with_the_missing_offset(tmp_path, size, offset, speed, direct):
    """Asked for are rows 0, 4 and 6 of the second chunk; the first that is not there whole is named."""
    _, file_of = written(tmp_path, 3)
    os.truncate(file_of(1), size)
    reader = Reader(file_of, WORDS, CHUNK, speed, direct)
    with pytest.raises(OSError, match=re.escape(str(file_of(1)))) as error:
        gathered(reader, [2, CHUNK + 6, CHUNK, 2 * CHUNK, CHUNK + 4])
    assert f"{ROW_BYTES} bytes at offset {offset * ROW_BYTES} " in str(error.value)
    assert f"has {size}" in str(error.value)
    reader.close()


@pytest.mark.parametrize("direct", ["cached"], indirect=True)
def test_a_disk_error_keeps_its_errno_and_names_the_row(rows_and_reader, tmp_path):
    """A folder can be opened, and not read."""
    _, reader = rows_and_reader
    (tmp_path / "c.2.0").unlink()
    (tmp_path / "c.2.0").mkdir()
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path / "c.2.0"))) as error:
        gathered(reader, [0, 2 * CHUNK + 3, 5 * CHUNK])
    assert error.value.errno == errno.EISDIR
    assert f"{ROW_BYTES} bytes at offset {3 * ROW_BYTES} " in str(error.value)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("max_files", [64, 2])
def test_the_first_of_several_damaged_rows_is_named(tmp_path, speed, max_files, direct, monkeypatch):
    rows, file_of = written(tmp_path, 150)
    reader = Reader(file_of, WORDS, CHUNK, speed, direct)
    monkeypatch.setattr(reader, "_max_files", max_files)
    for position in (1100, 433, 434, 1199):
        flip(file_of(position // CHUNK), position % CHUNK * ROW_BYTES + 5, 4)
    os.truncate(file_of(130), 0)
    at = np.random.default_rng(2).permutation(len(rows))
    with pytest.raises(WrongTag, match=re.escape(f"{file_of(54)}: the row at offset {ROW_BYTES} ")) as error:
        gathered(reader, at)
    assert error.value.position == 433
    fine = np.setdiff1d(at[at < 1040], [433, 434])
    np.testing.assert_array_equal(gathered(reader, fine), rows[fine])
    reader.close()
