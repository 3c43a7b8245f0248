"""A log opened again: the same map as before, and nothing is taken for right that is not."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.row_files import flip
from support.oracle.data_path import ROW, WORDS, Machine, make_log, read
from support.runs.harness import SPEED
from support.runs.sharded_tables import TABLES

from pipeline.commits.reopen import checksums, clean, open_log, rebuild
from pipeline.storage.chunks import Chunks
from pipeline.storage.files import Damaged, Files
from pipeline.storage.places import Caps, Places
from pipeline.storage.shards import Shards, shard_of


def reopened(path, manifest, shards=None):
    """Places and log as of this commit."""
    shards = shards or Shards.all(manifest.num_shards)
    places = Places(9, 9, ("clock", "clock"), Caps(1 << 20, 1 << 30), Chunks(manifest.chunk_rows, shards=shards))
    log = make_log(path, manifest.chunk_rows, checksums([manifest]), shards=shards)
    try:
        rebuild(places, log, manifest)
    finally:
        log.close()
    return places


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 60), unique=True, max_size=12), max_size=12), st.sampled_from([0, 2, 30]),
    st.sampled_from([1, 4]), st.sampled_from(TABLES), st.data(),
)  # fmt: skip
def test_a_rebuilt_map_agrees_with_the_commit(blocks, host_rows, chunk_rows, shards, data):
    with tempfile.TemporaryDirectory() as path:
        machine = Machine(path, 12, host_rows, chunk_rows, shards=shards)
        for keys in blocks:
            if machine.train(keys) or data.draw(st.booleans()):
                machine.commit()
        manifest = machine.commit()
        places = reopened(path, manifest, shards)
        rows, at = read(path, manifest)
        assert rows == machine.rows
        keys = np.array(list(at), np.uint64)
        assert places.chunks.positions_of(places.map.find(keys)).tolist() == list(at.values())
        assert len(places.map) == len(at)
        assert (places.chunks.tails, places.chunks.present) == (manifest.tails, len(manifest.chunks))
        assert places.chunks.live().tolist() == [c.number for c in manifest.chunks]
        assert [places.chunks.stale(c.number) for c in manifest.chunks] == [c.stale for c in manifest.chunks]
        machine.close()


@pytest.fixture
def left(tmp_path):
    """A commit of 30 keys, 20 of them twice in the log, in chunks of 4."""
    machine = Machine(tmp_path / "table.zarr", 12, 0, multiple=10.0)
    for first in (0, 10, 20, 0, 15):
        machine.train(range(first, first + 10))
    manifest = machine.commit()
    machine.close()
    return tmp_path / "table.zarr", manifest


def test_a_missing_or_short_file_of_rows_is_refused_by_name(left):
    path, manifest = left
    file = path / "rows" / f"c.{manifest.chunks[1].number}.0"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Damaged, match=rf"{file}: it has {4 * WORDS * 4 - 1} bytes, expected {4 * WORDS * 4}"):
        reopened(*left)
    file.unlink()
    with pytest.raises(Damaged, match=f"{file}: it is missing"):
        reopened(*left)


def test_a_changed_or_missing_file_of_keys_is_refused_by_name(left):
    path, manifest = left
    file = path / "keys" / f"c.{manifest.chunks[-1].number}"
    flip(file, 3, 16)
    with pytest.raises(Damaged, match=f"{file}: its checksum"):
        reopened(*left)
    file.unlink()
    with pytest.raises(OSError, match=str(file)):
        reopened(*left)


@pytest.mark.parametrize("change", ["live_rows", "stale", "chunks"])
def test_a_manifest_of_another_table_is_refused(left, change):
    path, manifest = left
    if change == "live_rows":
        manifest = dataclasses.replace(manifest, live_rows=31)
    elif change == "stale":
        other = manifest.chunks[0]._replace(stale=manifest.chunks[0].stale + 1)
        manifest = dataclasses.replace(manifest, chunks=(other, *manifest.chunks[1:]))
    else:
        manifest = dataclasses.replace(manifest, chunks=manifest.chunks[1:])
    with pytest.raises(Damaged, match=f"{path}: commit 1 has .* keys in the log, expected.*stale rows: .*verify"):
        reopened(path, manifest)


def test_cleaning_deletes_only_log_files_that_no_commit_names(left):
    path, manifest = left
    before = {p for p in path.rglob("*") if p.is_file()}
    others = [path / "rows" / "c.999.0", path / "keys" / "c.999", path / "zarr.json.partial"]
    mine = [path / "rows" / "x", path / "rows" / "c.9.9.9", path / "keys" / "c.999~", path / "c.9.0"]
    for other in others + mine:
        other.write_bytes(b"left over")
    clean(path, [manifest], Files())
    assert {p for p in path.rglob("*") if p.is_file()} >= before
    assert not [other for other in others if other.exists()]
    assert all(file.exists() for file in mine)
    clean(path, [], Files())
    assert {p.name for p in path.rglob("*") if p.is_file() and p not in mine} == {"zarr.json"}
    clean(Path(path / "nowhere"), [], Files())


@pytest.fixture
def sharded(tmp_path):
    """A commit of 60 keys in four shards, of which one process had all open."""
    path = tmp_path / "table.zarr"
    machine = Machine(path, 12, 8, multiple=10.0, shards=Shards.all(4))
    for first in (0, 10, 20, 30, 40, 50, 0, 15):
        machine.train(range(first, first + 10))
    manifest = machine.commit()
    machine.log.describe(manifest.tails)
    machine.close()
    return path, manifest


def test_shards_dealt_differently_keep_every_row_and_every_file(sharded):
    path, manifest = sharded
    at, before = read(path, manifest)[1], contents(path)
    found = {}
    for owned in ((0, 1), (2, 3), ()):
        part = manifest.part(owned)
        places = Places(
            9, 9, ("clock", "clock"), Caps(1 << 20, 1 << 30), Chunks(manifest.chunk_rows, shards=Shards(4, owned))
        )
        open_log(path, ROW, places, [manifest], SPEED, Files()).close()
        keys = np.array(list(at), np.uint64)
        places_N = places.map.find(keys)
        mine = np.isin(shard_of(keys, 4), owned)
        assert ((places_N == -1) == ~mine).all(), "a key is in the wrong process"
        assert len(places.map) == part.live_rows == places.chunks.live_rows
        assert (places.chunks.tails, places.chunks.present) == (part.tails, len(part.chunks))
        found |= dict(zip(keys[mine].tolist(), places.chunks.positions_of(places_N[mine]).tolist(), strict=True))
        clean(path, [manifest], Files(), Shards(4, owned))
    assert found == at
    assert contents(path) == before


def contents(path):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.rglob("*") if p.is_file()}


def test_cleaning_clears_its_own_shards_and_no_others(sharded):
    path, manifest = sharded
    before = {p for p in path.rglob("*") if p.is_file()}
    others = [path / "0" / "rows" / "c.999.0", path / "zarr.json.partial", path / "1" / "zarr.json.partial"]
    mine = [path / "3" / "keys" / "c.999", path / "3" / "rows" / "zarr.json.partial", path / "3" / "zarr.json.partial"]
    for file in (*others, *mine):
        file.write_bytes(b"left over")
    clean(path, [manifest], Files(), Shards(4, (2, 3)))
    assert {p for p in path.rglob("*") if p.is_file()} == before | set(others)
    clean(path, [manifest], Files(), Shards(4, (0, 1)))
    assert {p for p in path.rglob("*") if p.is_file()} == before


def test_a_table_with_another_number_of_shards_is_refused(sharded):
    path, manifest = sharded
    places = Places(9, 9, ("clock", "clock"), Caps(1 << 20, 1 << 30), Chunks(manifest.chunk_rows, shards=Shards.all(8)))
    with pytest.raises(ValueError, match=r"in 4 shards, but this workflow .* in 8 shards"):
        open_log(path, ROW, places, [manifest], SPEED, Files())


def test_a_map_too_small_for_a_commit_is_refused_with_the_size(left):
    path, manifest = left
    places = Places(9, 9, ("clock", "clock"), Caps(1 << 20, 100), Chunks(manifest.chunk_rows))
    with pytest.raises(ValueError, match=r"storage.map is 100 B, but the 30 keys .* --set 'storage.map=643 KiB'"):
        open_log(path, ROW, places, [manifest], SPEED, Files())
