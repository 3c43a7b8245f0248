"""What a commit writes: no row is missing from it, none is written for nothing, and the log does not grow with age."""

import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples, some
from support.oracle.data_path import Machine, make_log, read, take
from support.runs.sharded_tables import TABLES

from pipeline.commits.flush import flush
from pipeline.storage.chunks import Chunks
from pipeline.storage.files import Damaged
from pipeline.storage.key_map import DEVICE, place
from pipeline.storage.layout import RowLayout
from pipeline.storage.places import Caps, Places
from pipeline.storage.shards import shard_of
from pipeline.storage.tier import Slab

KEYS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 80)), unique=True, max_size=12)
STEPS = st.lists(st.one_of(KEYS, st.none()), max_size=24)
"""Keys of a block, or None for a commit."""


def check_commit(machine, manifest, path, multiple):
    shards = machine.log.shards
    rows, at = read(path, manifest)
    of_keys = shard_of(np.array(list(at), np.uint64), shards.num).tolist()
    assert [position // manifest.chunk_rows % shards.num for position in at.values()] == of_keys
    assert rows == machine.rows
    assert manifest.live_rows == len(rows)
    live = {c.number: 0 for c in manifest.chunks}
    for position in at.values():
        live[position // manifest.chunk_rows] += 1
    assert {c.number: manifest.chunk_rows - c.stale for c in manifest.chunks} == live
    assert 0 not in live.values(), "a chunk is kept for nothing"
    assert len(live) * manifest.chunk_rows <= multiple * len(rows) + len(shards.owned) * manifest.chunk_rows


@examples(8, 60)
@given(STEPS, st.integers(12, 40), st.sampled_from([0, 1, 7, 30]), st.sampled_from([1, 4, 9]),
       st.sampled_from([1.1, 2.0, 5.0]), st.sampled_from(TABLES))  # fmt: skip
def test_a_commit_has_every_row_in_a_bounded_number_of_chunks(
    steps, device_rows, host_rows, chunk_rows, multiple, shards
):
    with tempfile.TemporaryDirectory() as path:
        machine = Machine(path, device_rows, host_rows, chunk_rows, multiple=multiple, shards=shards)
        changed = set()
        for keys in [*steps, None]:
            if keys is not None:
                if machine.train(keys) is None:
                    changed |= set(keys)
                continue
            manifest = machine.commit()
            check_commit(machine, manifest, path, multiple)
            assert machine.flushed.changed <= len(changed), "an unchanged row was written"
            changed = set()
        machine.close()


def test_a_second_commit_writes_only_changed_rows(tmp_path):
    machine = Machine(tmp_path, 40, 20)
    for first in range(0, 60, 10):
        machine.train(range(first, first + 10))
    machine.commit()
    assert machine.flushed.changed == 60
    machine.commit()
    assert machine.flushed.changed == 0
    machine.train(range(7))
    manifest = machine.commit()
    assert machine.flushed.changed == 7
    check_commit(machine, manifest, tmp_path, 2.0)
    machine.close()


def test_unchanged_rows_leave_the_slabs_without_being_written(tmp_path):
    """30 rows of a commit make way for 30 others: they are where the commit put them."""
    machine = Machine(tmp_path, 20, 10)
    for first in range(0, 30, 10):
        machine.train(range(first, first + 10))
    before = machine.commit()
    written = machine.log.written_bytes
    machine.train(range(100, 120))
    machine.train(range(200, 210))
    assert machine.log.written_bytes == written
    assert read(tmp_path, before)[0].keys() == set(range(30))
    # They come back from there.
    machine.train(range(20))
    check_commit(machine, machine.commit(), tmp_path, 2.0)
    machine.close()


def test_copies_of_unchanged_rows_follow_a_merge_of_their_chunk(tmp_path):
    machine = Machine(tmp_path, 40, 0)
    machine.train(range(16))
    machine.commit()
    for keep in range(0, 16, 4):
        machine.train([key for key in range(16) if key % 4 != 0 and key // 4 == keep // 4])
    manifest = machine.commit()
    assert machine.flushed.merged == 4
    check_commit(machine, manifest, tmp_path, 2.0)
    copies = machine.places.device.copies_S[machine.places.device.keys_S != 2**64 - 1]
    assert sorted(copies.tolist()) == sorted(read(tmp_path, manifest)[1].values())
    machine.close()


@pytest.mark.parametrize("multiple", some([1.5, 2.0], 1.5))
@pytest.mark.parametrize("shards", TABLES)
def test_the_size_of_a_commit_stays_bounded_over_a_long_run(tmp_path, multiple, shards):
    """Keys drift, so that old rows stay on disk among ever more stale ones."""
    rng = np.random.default_rng(0)
    machine = Machine(tmp_path, 40, 20, multiple=multiple, shards=shards)
    amplification = 0
    for number in range(60):
        keys = np.unique(number + rng.zipf(1.3, 30) % 200).tolist()
        if refusal := machine.train(keys):
            assert refusal.what == "commit"
            check_commit(machine, machine.commit(), tmp_path, multiple)
            machine.train(keys)
        if number % 5 == 4:
            check_commit(machine, machine.commit(), tmp_path, multiple)
            amplification += machine.flushed.merged
    assert amplification > 0, "nothing was ever merged: this shows too little"
    machine.close()


def test_merging_a_row_of_another_key_is_refused(tmp_path):
    """Two files of rows changed places, every tag in them is right: a merge must notice, and publish nothing."""
    machine = Machine(tmp_path, 8, 0)
    for first in range(1, 33, 4):
        machine.train(range(first, first + 4))
    manifest = machine.commit()
    at = read(tmp_path, manifest)[1]
    sparse = next(c.number for c in manifest.chunks if not c.stale)
    machine.train([key for key, position in at.items() if position // 4 == sparse][:3])
    assert sparse in machine.places.chunks.sparse()
    other = next(c.number for c in manifest.chunks if c.number != sparse)
    one, two = (tmp_path / "rows" / f"c.{number}.0" for number in (sparse, other))
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    machine.log._reader.forget([sparse, other])
    with pytest.raises(
        Damaged, match=r"1 of 1 rows are not the requested ones; the first: .*c\.\d+\.0, offset \d+ holds"
    ):
        machine.commit()
    machine.close()


@pytest.mark.parametrize("shards", TABLES)
def test_merging_stays_within_the_cap_of_the_disk(tmp_path, shards):
    """A log that was made with few merges is set to merge more, with a cap that it almost fills."""
    machine = Machine(tmp_path, 30, 0, multiple=4.0, growth=4.0, shards=shards)
    rng = np.random.default_rng(0)
    for number in range(120):
        if machine.train(rng.permutation(100)[:12].tolist()):
            machine.commit(number)
    machine.commit()
    places = machine.places
    places.chunks._multiple = 1.1
    backlog = places.chunks.merged(np.empty(0, np.int64))
    cap = places.chunks.present + backlog // 2
    places.caps = Caps(cap, 1 << 30)
    commits = 0
    # A chunk of a shard that is sparse by itself has nothing to be merged with.
    while len(places.chunks.sparse()) > (len(shards.owned) if shards.num > 1 else 0):
        before = places.chunks.present
        manifest = machine.commit(forget=False)
        assert machine.places.chunks.present <= cap
        assert machine.flushed.merged > 0 or commits == 0
        machine.log.remove(machine.log.checksums.keys() - {c.number for c in manifest.chunks})
        places.chunks.keep(machine.log.checksums)
        places.begin_growth()
        commits += 1
        assert places.chunks.present < before
    assert commits > 1
    check_commit(machine, machine.commit(), tmp_path, 1.1)
    machine.close()


def test_a_commit_takes_at_most_one_chunk_of_memory(tmp_path):
    """Beyond the buffer that the run has anyway; 30,000 changed rows of 224 bytes in chunks of 8,192."""
    row, num_rows, chunk_rows = RowLayout(embedding_dim=16, first_order=True), 30_000, 8192
    places = Places(num_rows, 0, ("clock", "clock"), Caps(1 << 20, 1 << 30), Chunks(chunk_rows))
    device, log = Slab(num_rows, row.num_words), make_log(tmp_path / "log", chunk_rows, row=row)
    keys_U = np.arange(num_rows, dtype=np.uint64)
    slots = take(places.device, keys_U)
    device.words_SW[slots, :2] = keys_U.reshape(-1, 1).view(np.uint32)
    places.map.insert(keys_U, place(DEVICE, slots))
    chunk_RW = np.empty((chunk_rows, row.num_words), np.uint32)
    tracemalloc.start()
    flush(places, device, Slab(0, row.num_words), log, chunk_RW)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    log.close()
    assert peak <= chunk_RW.nbytes, f"{peak:,} bytes"
