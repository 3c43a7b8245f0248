"""The log: a tier that appends, and a Zarr group that any reader opens. (Reading has separate tests.)"""

import re

import numpy as np
import pytest
import zarr
from support.data.row_files import flip, num_open
from support.oracle.tier_contract import check_tier, gathered, made_rows
from support.runs.harness import SPEED

from pipeline.kernels.tag import tag_reference
from pipeline.storage.chunks import Chunks
from pipeline.storage.files import Damaged, Files
from pipeline.storage.layout import RowLayout, row_keys
from pipeline.storage.log import Log, TableFormat, gather_reference, keys_file, rows_file
from pipeline.storage.shards import ONE_SHARD, Shards

ROW = RowLayout(embedding_dim=4, first_order=True)
WORDS = ROW.num_words
CHUNK = 8
RESERVED = 2**64 - 1


def make_log(path, checksums=None, shards=ONE_SHARD):
    return Log(path / "table.zarr", TableFormat(ROW, CHUNK, shards), SPEED, Files(), checksums)


class Tagless:
    """A log that takes any rows for its contract: the last word of a row that was read is what went in."""

    def __init__(self, path, shards):
        self._log, self._tags = make_log(path, shards=shards), {}
        self.close = self._log.close

    def scatter(self, at_U, rows_UW):
        self._tags |= dict(zip(np.asarray(at_U).tolist(), rows_UW[:, -1].tolist(), strict=True))
        self._log.scatter(at_U, rows_UW)

    def gather(self, at_U, out_UW):
        self._log.gather(at_U, out_UW)
        out_UW[:, -1] = [self._tags[at] for at in np.asarray(at_U).tolist()]


@pytest.fixture
def log(tmp_path):
    log = make_log(tmp_path)
    yield log
    log.close()


def append(log, rows, at=0):
    """Rows at consecutive positions from `at`, with their tags; returns where the next ones may go."""
    log.scatter(np.arange(at, at + len(rows)), rows)
    return at + -(-len(rows) // log.chunk_rows) * log.chunk_rows


@pytest.mark.parametrize("num_rows", [2, CHUNK, 3 * CHUNK + 5, 200])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_the_log_keeps_the_tier_contract(tmp_path, num_rows, num_shards):
    check_tier(lambda: Tagless(tmp_path, Shards.all(num_shards)), num_rows, WORDS, np.int64, CHUNK)


def test_zarr_reads_the_rows_keys_and_padding_of_the_log(log):
    first, second = made_rows(CHUNK + 3, WORDS, seed=1), made_rows(2, WORDS, seed=2)
    tail = append(log, second, append(log, first))
    log.describe([tail])
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
    assert (rows[padding] == 2**32 - 1).all()


def test_the_log_and_its_reference_read_the_same_rows(log):
    tail = append(log, made_rows(3 * CHUNK + 5, WORDS))
    log.describe([tail])
    at = np.random.default_rng(0).permutation(3 * CHUNK + 5)[:17]
    np.testing.assert_array_equal(gather_reference(log.path, at), gathered(log, at, WORDS, np.int64))


def test_zarr_reads_a_deleted_chunk_as_reserved_keys(log):
    rows = made_rows(3 * CHUNK, WORDS)
    log.describe([append(log, rows)])
    log.remove([1])
    group = zarr.open_group(log.path, mode="r")
    there = [*range(CHUNK), *range(2 * CHUNK, 3 * CHUNK)]
    np.testing.assert_array_equal(group["rows"][:][there], rows[there])
    assert (group["keys"][:][CHUNK : 2 * CHUNK] == RESERVED).all()


def test_the_attributes_describe_the_row_layout(log):
    rows = made_rows(3, WORDS)
    append(log, rows)
    log.describe([CHUNK])
    group = zarr.open_group(log.path, mode="r")
    row = group.attrs["row"]
    stored = group["rows"][:3]
    np.testing.assert_array_equal(row_keys(stored[:, slice(*row["key"])]), group["keys"][:3])
    parts = ["key", "embedding", "first_order", "adam_m", "adam_v"]
    assert [row[part][0] for part in parts] == [0, *(row[part][1] for part in parts[:-1])]
    assert row["embedding"][1] - row["embedding"][0] == 4
    assert row["first_order"][1] - row["first_order"][0] == 1
    assert [row["last_step"], row["count"], row["tag"]] == [row["adam_v"][1] + n for n in range(3)]
    assert row["tag"] == ROW.tag_at == group["rows"].shape[1] - 1
    assert RowLayout.of(dict(row)) == ROW


def test_a_row_is_tagged_on_its_way_to_disk(log):
    rows = made_rows(CHUNK + 1, WORDS)
    before = rows.copy()
    append(log, rows)
    assert rows[:, -1].tolist() == [tag_reference(row.tolist()) for row in rows]
    np.testing.assert_array_equal(rows[:, :-1], before[:, :-1])
    np.testing.assert_array_equal(gathered(log, range(CHUNK + 1), WORDS, np.int64), rows)


def test_chunk_files_hold_raw_rows_and_raw_keys(log):
    rows = made_rows(CHUNK + 1, WORDS)
    append(log, rows)
    files = {str(p.relative_to(log.path)) for p in log.path.rglob("*") if p.is_file()}
    chunks = {name for name in files if not name.endswith("zarr.json")}
    assert chunks == {"rows/c.0.0", "rows/c.1.0", "keys/c.0", "keys/c.1"}
    assert (log.path / "rows" / "c.0.0").read_bytes() == rows[:CHUNK].astype("<u4").tobytes()
    assert (log.path / "keys" / "c.0").read_bytes() == row_keys(rows)[:CHUNK].astype("<u8").tobytes()
    sizes = [(log.path / name).stat().st_size for name in sorted(chunks)]
    assert sizes == [CHUNK * 8] * 2 + [CHUNK * ROW.num_bytes] * 2
    assert log.written_bytes == sum(sizes) == 2 * log.chunk_bytes


def test_keys_of_a_chunk_are_padded_and_their_changes_detected(log):
    rows = made_rows(CHUNK + 3, WORDS)
    append(log, rows)
    assert log.keys(1).tolist() == [*row_keys(rows)[CHUNK:].tolist(), *[RESERVED] * 5]
    file = keys_file(log.path, 1)
    content = file.read_bytes()
    for changed in (content[:-1], content + b"\0", bytes([content[0] ^ 1]) + content[1:]):
        file.write_bytes(changed)
        with pytest.raises(Damaged, match=rf"{re.escape(str(file))}: its checksum .*verify RUN"):
            log.keys(1)


def test_a_damaged_row_is_refused_with_its_file_offset_and_key(log):
    rows = made_rows(2 * CHUNK, WORDS)
    append(log, rows)
    file = rows_file(log.path, 1)
    flip(file, 3 * ROW.num_bytes + 17, 64)
    with pytest.raises(Damaged) as caught:
        gathered(log, [2, CHUNK + 5, CHUNK + 3], WORDS, np.int64)
    key = int(row_keys(rows)[CHUNK + 3])
    assert str(caught.value).startswith(
        f"{file}, offset {3 * ROW.num_bytes}: the row of key {key:#018x} has a wrong tag; "
    )
    np.testing.assert_array_equal(gathered(log, [2, CHUNK + 5], WORDS, np.int64), rows[[2, CHUNK + 5]])


def test_a_removed_chunk_loses_its_files_descriptor_and_checksum(log):
    rows = made_rows(3 * CHUNK, WORDS)
    append(log, rows)
    gathered(log, range(3 * CHUNK), WORDS, np.int64)
    before = num_open(log.path)
    log.remove(iter([0, 2]))
    assert num_open(log.path) == before - 2
    assert log.checksums.keys() == {1}
    assert {p.name for p in log.path.rglob("c.*")} == {"c.1.0", "c.1"}
    with pytest.raises(FileNotFoundError):
        gathered(log, [0], WORDS, np.int64)
    np.testing.assert_array_equal(gathered(log, [CHUNK], WORDS, np.int64), rows[[CHUNK]])


def test_a_reopened_log_has_the_same_rows_and_takes_more(tmp_path, log):
    rows = made_rows(2 * CHUNK, WORDS)
    tail = append(log, rows)
    again = make_log(tmp_path, dict(log.checksums))
    np.testing.assert_array_equal(gathered(again, range(tail), WORDS, np.int64), rows)
    assert append(again, made_rows(1, WORDS), tail) == tail + CHUNK
    assert again.keys(0).tolist() == row_keys(rows)[:CHUNK].tolist()
    assert again.checksums.keys() == {0, 1, 2}
    again.close()


def test_an_empty_log_opens_without_a_rewrite(log):
    assert zarr.open_group(log.path, mode="r")["rows"].shape == (0, WORDS)
    files = [log.path / name for name in ("zarr.json", "rows/zarr.json", "keys/zarr.json")]
    before = [file.stat().st_ino for file in files]
    log.describe([0])
    assert [file.stat().st_ino for file in files] == before
    log.describe([CHUNK])
    changed = [file.stat().st_ino != inode for file, inode in zip(files, before, strict=True)]
    assert changed == [False, True, True]


def test_zarr_reads_the_rows_of_each_shard_from_its_own_arrays(tmp_path):
    """Two processes that have two shards each: each of their chunks lies in the arrays of its own shard."""
    rows, chunks = made_rows(8 * CHUNK, WORDS).reshape(8, CHUNK, WORDS), Chunks(CHUNK, shards=Shards.all(4))
    at = {shard: chunks.add(2 * CHUNK, shard) for shard in range(4)}
    for owned in ((2, 3), (0, 1)):
        log = make_log(tmp_path, shards=Shards(4, owned))
        for shard in owned:
            written = rows[2 * shard : 2 * shard + 2].reshape(-1, WORDS)
            log.scatter(at[shard], written)
            np.testing.assert_array_equal(gathered(log, at[shard], WORDS, np.int64), written)
        log.describe(chunks.tails)
        log.sync()
        log.close()
    table = zarr.open_group(tmp_path / "table.zarr", mode="r")
    assert table.attrs["num_shards"] == 4
    for shard in range(4):
        found = table[f"{shard}/rows"]
        assert found.shape == (2 * CHUNK, WORDS)
        np.testing.assert_array_equal(found[:], rows[2 * shard : 2 * shard + 2].reshape(-1, WORDS))
        np.testing.assert_array_equal(table[f"{shard}/keys"][:], row_keys(found[:]))
        attributes = table[str(shard)].attrs
        assert (attributes["shard"], attributes["num_shards"], RowLayout.of(attributes["row"])) == (shard, 4, ROW)


def test_a_file_is_named_by_its_shard_and_chunk(tmp_path):
    assert rows_file(tmp_path, 5) == tmp_path / "rows" / "c.5.0"
    assert rows_file(tmp_path, 3 + 16 * 5, 16) == tmp_path / "03" / "rows" / "c.5.0"
    assert keys_file(tmp_path, 3 + 16 * 5, 16) == tmp_path / "03" / "keys" / "c.5"
    log = make_log(tmp_path, shards=Shards(16, (3, 12)))
    assert log.where((3 + 16 * 5) * CHUNK + 2) == f"{rows_file(log.path, 83, 16)}, offset {2 * ROW.num_bytes}"
    assert sorted(path.name for path in log.path.iterdir()) == ["03", "12"]
    log.close()
