"""After a commit: a hash that shows only whether live rows are equal."""

import tempfile
from pathlib import Path

import numpy as np
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle.data_path import ROW, make_log, take
from support.oracle.tier_contract import made_rows

from pipeline.commits.flush import fingerprint, flush, table_hash
from pipeline.kernels.hashing import row_hash_reference
from pipeline.records import RESERVED
from pipeline.storage.chunks import Chunks
from pipeline.storage.key_map import DEVICE, DISK, HOST, place
from pipeline.storage.layout import row_keys
from pipeline.storage.places import Caps, Places
from pipeline.storage.tier import Slab

CHUNK = 4
SLOTS = 40


def finished(rows, tiers, stale=(), seed=0):
    """Hash and count of a table whose row u lies in tier `tiers[u]`, after a commit.

    `stale` rows of the table have older versions in the log. Also returns what a Zarr reader then finds: keys in order
    of position, and rows.
    """
    tiers = np.array(tiers, int)
    chunk_RW = np.empty((CHUNK, ROW.num_words), np.uint32)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    places = Places(SLOTS, SLOTS, ("clock", "clock"), Caps(1 << 20, 1 << 30), Chunks(CHUNK))
    with tempfile.TemporaryDirectory() as folder:
        log = make_log(Path(folder) / "table.zarr", CHUNK)
        slabs = [Slab(SLOTS, ROW.num_words), Slab(SLOTS, ROW.num_words)]
        for slab in slabs:
            slab.words_SW[:] = rng.integers(0, 2**32, slab.words_SW.shape, np.uint32)
        old = _append(places, log, rows[list(stale)] ^ np.uint32([[0, 0] + [1] * (ROW.num_words - 2)]))
        places.chunks.forget(old)
        for tier, slots in ((DEVICE, places.device), (HOST, places.host)):
            mine = order[tiers[order] == tier]
            # Slots are used in no order, and some are free again.
            others = take(slots, np.arange(1000, 1000 + int(rng.integers(0, SLOTS - len(mine) + 1)), dtype=np.uint64))
            at = take(slots, row_keys(rows[mine]))
            slots.release(others)
            slabs[tier].scatter(at, rows[mine])
            places.map.insert(row_keys(rows[mine]), place(tier, at))
        on_disk = order[tiers[order] == DISK]
        at = _append(places, log, rows[on_disk])
        places.map.insert(row_keys(rows[on_disk]), places.chunks.places_of(at))

        flush(places, slabs[0], slabs[1], log, chunk_RW)
        result = table_hash(places, log, chunk_RW)
        log.describe(places.chunks.tails)
        group = zarr.open_group(log.path, mode="r")
        found = group["keys"][:], group["rows"][:]
        log.close()
    return result, found


def _append(places, log, rows):
    at = places.chunks.add(len(rows))
    log.scatter(at, rows.copy())
    return at


def hash_of(rows):
    return sum(row_hash_reference(row[: ROW.tag_at].tolist()) for row in rows) % 2**128


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from([DEVICE, HOST, DISK]), max_size=30), st.integers(0, 2**32), st.data())
def test_the_hash_depends_on_live_rows_alone(tiers, seed, data):
    rows = made_rows(len(tiers), ROW.num_words)
    stale = [u for u in range(len(rows)) if data.draw(st.booleans())]
    result, (keys, logged) = finished(rows, tiers, stale, seed)
    assert result == (hash_of(rows), len(rows))
    # The last version of a key is the live one: what a reader with nothing but `keys` relies on.
    last = {int(key): at for at, key in enumerate(keys) if key != RESERVED}
    assert len(last) == len(rows)
    at = [last[int(key)] for key in row_keys(rows)]
    np.testing.assert_array_equal(logged[at][:, : ROW.tag_at], rows[:, : ROW.tag_at])
    np.testing.assert_array_equal(row_keys(logged), keys)


def test_every_change_of_the_dense_model_changes_the_fingerprint():
    one = [("w", np.zeros((2, 3), np.float32)), ("b", np.ones(2, np.float32))]
    seen = {
        fingerprint(5, one),
        fingerprint(6, one),
        fingerprint(5 + (1 << 127), one),
        fingerprint(5, one[::-1]),
        fingerprint(5, one[:1]),
        fingerprint(5, [("v", one[0][1]), one[1]]),
        fingerprint(5, [("w", one[0][1].reshape(3, 2)), one[1]]),
        fingerprint(5, [("w", one[0][1].view(np.int32)), one[1]]),
        fingerprint(5, [("w", np.array(-one[0][1])), one[1]]),
    }
    assert len(seen) == 9
    assert fingerprint(5, one) == fingerprint(5, [(name, np.asfortranarray(array)) for name, array in one])
