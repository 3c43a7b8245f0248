"""The data path without a model: rows move as `plan` says, "training" changes their words, and commits are made."""

import os
from pathlib import Path

import numpy as np
from support.runs.harness import SPEED
from support.runs.sharded_tables import in_shards

from pipeline.commits.flush import flush
from pipeline.commits.manifest import ChunkState, Manifest
from pipeline.records import Block, Refusal, Trained, Unique
from pipeline.stages.plan import RingRows, plan
from pipeline.stages.prefetch import prefetch
from pipeline.stages.train import swap
from pipeline.stages.write_back import write_back
from pipeline.storage.chunks import Chunks
from pipeline.storage.files import Files
from pipeline.storage.layout import RowLayout
from pipeline.storage.log import Log, TableFormat, metadata
from pipeline.storage.places import Caps, Places
from pipeline.storage.policies import Uses
from pipeline.storage.shards import ONE_SHARD
from pipeline.storage.tier import Slab

ROW = RowLayout(embedding_dim=2, first_order=False)
WORDS = ROW.num_words


class Unsynced:
    """System calls without fsync, so that nothing waits for the disk."""

    def __getattr__(self, name):
        return (lambda *args: None) if name == "fsync" else getattr(os, name)


def make_log(path, chunk_rows, checksums=None, row=ROW, shards=ONE_SHARD):
    files = Files()
    files.system = Unsynced()
    return Log(Path(path), TableFormat(row, chunk_rows, shards), SPEED, files, checksums)


def take(slots, keys):
    """Take slots for new rows with these keys."""
    return slots.take(np.array(keys, np.uint64), Uses.none(len(keys)))


class Machine:
    """A process that has some shards of a table open. Converts the numbers passed to it to keys of these shards."""

    def __init__(
        self, path, device_rows, host_rows, chunk_rows=4, disk_chunks=1 << 20, multiple=2.0, growth=1.0,
        shards=ONE_SHARD,
    ):  # fmt: skip
        chunks = Chunks(chunk_rows, multiple, growth, shards)
        self.places = Places(device_rows, host_rows, ("clock", "clock"), Caps(disk_chunks, 1 << 30), chunks)
        self.device, self.host = Slab(device_rows, WORDS), Slab(host_rows, WORDS)
        self.log = make_log(path, chunk_rows, shards=shards)
        self.chunk_RW = np.empty((chunk_rows, WORDS), np.uint32)
        self.rows = {}
        """Words of every row, without the tag."""
        self.blocks = 0

    def train(self, keys):
        """Change the words of these keys' rows. Returns the refusal if `plan` refuses them."""
        keys = [in_shards(key, self.log.shards) for key in keys]
        block = Block(self.blocks, "train", 0, 0, 1, 0, 1, 1, 0, False)
        keys_U = np.array(keys, np.uint64)
        p = plan([Unique(block, keys_U, ())], self.places, RingRows(1 << 20, 1 << 20))
        if isinstance(p, Refusal):
            return p
        staged = prefetch(p, self.host, self.log, np.empty((len(keys), WORDS), np.uint32), init_rows)
        outgoing_EW = np.empty((len(p.victim_slots_E), WORDS), np.uint32)
        swap(p, staged, self.device, outgoing_EW)
        for key, slot in zip(keys, p.rows_U.tolist(), strict=True):
            row = self.device.words_SW[slot]
            assert row[: ROW.tag_at].tolist() == self.rows.get(key, row[: ROW.tag_at].tolist())
            row[2:] = 1000 * (key % 2**16) + self.blocks
            self.rows[key] = row[: ROW.tag_at].tolist()
        write_back(p, Trained(block, outgoing_EW), self.host, self.log, self.chunk_RW)
        self.blocks += 1
        return None

    def commit(self, number=1, forget=True):
        """Flush, and return the manifest. Chunks that it does not name are deleted."""
        self.flushed = flush(self.places, self.device, self.host, self.log, self.chunk_RW)
        chunks = self.places.chunks
        live = chunks.live().tolist()
        if forget:
            self.log.remove(self.log.checksums.keys() - set(live))
        chunks.keep(self.log.checksums)
        self.places.begin_growth()
        return Manifest(
            number=number, name=None, num_shards=chunks.shards.num, tails=chunks.tails,
            live_rows=len(self.places.map), row=ROW.describe(), chunk_rows=self.log.chunk_rows,
            chunks=tuple(ChunkState(c, chunks.stale(c), *self.log.checksums[c]) for c in live),
            metadata=dict.fromkeys(metadata(self.log.table, chunks.tails), ""),
            dense=("",), state={},
        )  # fmt: skip

    def close(self):
        self.log.close()


def init_rows(keys_U, out_UW):
    out_UW[:] = 0
    out_UW[:, :2] = keys_U.reshape(-1, 1).view(np.uint32)


def read(path, manifest):
    """Read the table using only the files and the manifest. Returns the words and the position of each key."""
    rows, at = {}, {}
    for chunk in manifest.chunks:
        own, shard = divmod(chunk.number, manifest.num_shards)
        folder = Path(path) / str(shard) if manifest.num_shards > 1 else Path(path)
        words = np.frombuffer((folder / "rows" / f"c.{own}.0").read_bytes(), np.uint32).reshape(-1, WORDS)
        keys = np.frombuffer((folder / "keys" / f"c.{own}").read_bytes(), np.uint64)
        for r, key in enumerate(keys.tolist()):
            if key != 2**64 - 1:
                rows[key] = words[r, : ROW.tag_at].tolist()
                at[key] = chunk.number * manifest.chunk_rows + r
    return rows, at
