"""The log: a tier that appends, and a Zarr group that any reader opens."""

import os
import re

import numpy as np
import pytest
import zarr
from contract import check_tier, gathered, made_rows

from pipeline.storage.layout import RowLayout, row_keys
from pipeline.storage.log import Log

ROW = RowLayout(embedding_dim=4, first_order=True)
WORDS = ROW.num_words
CHUNK = 8
RESERVED = 2**64 - 1


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "table.zarr", ROW, CHUNK)
    yield log
    log.close()


def append(log, rows, at=0):
    """Rows at consecutive positions from `at`; returns where the next ones may go."""
    log.scatter(np.arange(at, at + len(rows)), rows)
    return at + -(-len(rows) // log.chunk_rows) * log.chunk_rows


@pytest.mark.parametrize("num_rows", [2, CHUNK, 3 * CHUNK + 5, 200])
def test_the_log_is_not_a_tier(tmp_path, num_rows):
    check_tier(lambda: Log(tmp_path / "table.zarr", ROW, CHUNK), num_rows, WORDS, np.int64, CHUNK)


def test_many_rows_of_one_call_are_mixed_up_among_the_readers(tmp_path):
    log = Log(tmp_path / "table.zarr", ROW, 1024)
    rows = made_rows(5000, WORDS)
    append(log, rows)
    at = np.random.default_rng(0).permutation(5000)[:3000]
    np.testing.assert_array_equal(gathered(log, at, WORDS, np.int64), rows[at])
    log.close()


def test_a_position_twice_in_a_call_is_read_once(log):
    rows = made_rows(CHUNK, WORDS)
    append(log, rows)
    at = [3, 3, 0, 7, 3]
    np.testing.assert_array_equal(gathered(log, at, WORDS, np.int64), rows[at])


def num_open(log):
    """Descriptors of this process that lie in the log's folder."""
    folder = "/proc/self/fd"
    return sum(os.path.realpath(os.path.join(folder, fd)).startswith(str(log.path)) for fd in os.listdir(folder))


def test_more_chunks_than_may_be_open_leak_descriptors_or_close_one_in_use(log, monkeypatch):
    monkeypatch.setattr(log, "_max_files", 3)
    rows = made_rows(10 * CHUNK, WORDS)
    append(log, rows)
    rng = np.random.default_rng(1)
    for num in (80, 2, 5, 1, 80, 17):
        at = rng.permutation(len(rows))[:num]
        np.testing.assert_array_equal(gathered(log, at, WORDS, np.int64), rows[at])
        assert num_open(log) <= 3
    log.close()
    assert num_open(log) == 0


def test_another_zarr_reader_finds_other_rows_keys_or_padding(log):
    first, second = made_rows(CHUNK + 3, WORDS, seed=1), made_rows(2, WORDS, seed=2)
    tail = append(log, second, append(log, first))
    log.seal(tail)
    group = zarr.open_group(log.path, mode="r")
    assert (group["rows"].shape, group["keys"].shape) == ((tail, WORDS), (tail,))
    rows, keys = group["rows"][:], group["keys"][:]
    assert (rows.dtype, keys.dtype) == (np.uint32, np.uint64)
    written = [*range(CHUNK + 3), *range(2 * CHUNK, 2 * CHUNK + 2)]
    expected = np.concatenate([first, second])
    np.testing.assert_array_equal(rows[written], expected)
    np.testing.assert_array_equal(keys[written], row_keys(expected))
    padding = np.setdiff1d(np.arange(tail), written)
    assert len(padding) == 5 + 6
    assert (keys[padding] == RESERVED).all()
    assert (row_keys(rows[padding]) == RESERVED).all()


def test_the_attributes_do_not_describe_the_row(log):
    rows = made_rows(3, WORDS)
    append(log, rows)
    log.seal(CHUNK)
    group = zarr.open_group(log.path, mode="r")
    row = group.attrs["row"]
    stored = group["rows"][:3]
    np.testing.assert_array_equal(row_keys(stored[:, slice(*row["key"])]), group["keys"][:3])
    parts = ["key", "embedding", "first_order", "adam_m", "adam_v"]
    assert [row[part][0] for part in parts] == [0, *(row[part][1] for part in parts[:-1])]
    assert row["embedding"][1] - row["embedding"][0] == 4
    assert row["first_order"][1] - row["first_order"][0] == 1
    assert [row["last_step"], row["count"], row["reserved_for_tag"]] == [row["adam_v"][1] + n for n in range(3)]
    assert row["reserved_for_tag"] == ROW.tag_at == group["rows"].shape[1] - 1


def test_a_chunk_file_is_not_the_raw_rows_or_lies_in_a_folder_of_its_own(log):
    rows = made_rows(CHUNK + 1, WORDS)
    append(log, rows)
    files = {str(p.relative_to(log.path)) for p in log.path.rglob("*") if p.is_file()}
    chunks = {name for name in files if not name.endswith("zarr.json")}
    assert chunks == {"rows/c.0.0", "rows/c.1.0", "keys/c.0", "keys/c.1"}
    assert (log.path / "rows" / "c.0.0").read_bytes() == rows[:CHUNK].astype("<u4").tobytes()
    assert (log.path / "keys" / "c.0").read_bytes() == row_keys(rows)[:CHUNK].astype("<u8").tobytes()
    sizes = {(log.path / name).stat().st_size for name in chunks if name.startswith("rows")}
    assert sizes == {CHUNK * ROW.num_bytes}


def test_a_sealed_log_of_no_rows_cannot_be_opened(log):
    log.seal(0)
    assert zarr.open_group(log.path, mode="r")["rows"].shape == (0, WORDS)


@pytest.mark.parametrize(("size", "offset"), [(5 * ROW.num_bytes - 1, 4), (5 * ROW.num_bytes, 6), (0, 0)])
def test_a_truncated_chunk_is_read_or_blamed_at_the_wrong_offset(log, size, offset):
    """Asked for are rows 0, 4 and 6 of the second chunk; the first that is not there whole is named."""
    append(log, made_rows(3 * CHUNK, WORDS))
    os.truncate(log.file(1), size)
    with pytest.raises(OSError, match=re.escape(str(log.file(1)))) as error:
        gathered(log, [2, CHUNK + 6, CHUNK, 2 * CHUNK, CHUNK + 4], WORDS, np.int64)
    assert f"offset {offset * ROW.num_bytes} " in str(error.value)
    assert f"has {size}" in str(error.value)


def test_a_chunk_that_is_not_there_is_not_named(log):
    append(log, made_rows(CHUNK, WORDS))
    with pytest.raises(OSError, match=re.escape(str(log.file(1)))):
        gathered(log, [CHUNK], WORDS, np.int64)


def test_a_chunk_is_written_twice(log):
    rows = made_rows(3, WORDS)
    append(log, rows)
    with pytest.raises(FileExistsError):
        append(log, rows + np.uint32(1))
    np.testing.assert_array_equal(gathered(log, range(3), WORDS, np.int64), rows)


def test_rows_are_appended_in_the_middle_of_a_chunk_or_out_of_order(log):
    rows = made_rows(2, WORDS)
    for at in ([3, 4], [CHUNK, CHUNK + 2], [CHUNK + 1, CHUNK]):
        with pytest.raises(AssertionError):
            log.scatter(np.array(at), rows)
    assert not log.file(0).exists()


def test_a_log_is_made_where_one_lies(log):
    append(log, made_rows(1, WORDS))
    with pytest.raises(FileExistsError):
        Log(log.path, ROW, CHUNK)
    assert log.file(0).exists()
