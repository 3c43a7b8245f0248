"""Tables with any number of keys, made without training, and training data with the same hit rates on each."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.source import Source
from pipeline.device.device import RAM
from pipeline.driver.driver import Driver
from pipeline.driver.loop import DueCommit
from pipeline.driver.open import folder_of, local_crew, make_run_dir
from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.models import DeepFM
from pipeline.monitor.progress import Progress
from pipeline.preflight.setup import Setup, set_up
from pipeline.preflight.sizes import SLACK, log_chunk_bytes
from pipeline.records import I64
from pipeline.settings.optimizer import Optimizer, RowWiseAdagrad
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.key_map import most_bytes_for
from pipeline.storage.places import Places
from pipeline.storage.tier import write_first_rows
from pipeline.training.build import row_layout
from pipeline.worker.worker import Worker
from pipeline.workflow import Category, Commit, Data, Model, Schedule, Storage, Workflow

FIELDS = 10
TABLE = "item"
"""Name of the only table, to which the keys of all columns belong."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything except the table."""

    batch: int = 4096
    block_batches: int = 8
    hot_keys: int = 1_000_000
    """Number of keys from which most draws come, uniformly: more than the device slab holds, fewer than device and host
    together."""
    cold_share: float = 0.04
    """Share of a batch's draws that are keys stored only on disk."""
    new_share: float = 0.005
    """Share of a batch's draws that are keys not yet in the table."""
    device_rows: int = 850_000
    host_rows: int = 600_000
    chunk_rows: int = 32_768
    """Gives chunk files of 1.5 MB, like those of wider rows, and fewer of them than files may be open."""
    growth_chunks: int = 600
    """Number of chunks that may be written before an early commit, for tables of every size."""
    read_bytes: int = 256 << 20
    warm_blocks: int = 40
    """Number of blocks trained before the measurement, until device and host are full."""
    blocks: int = 160
    insert_blocks: int = 16
    """Number of blocks of new keys among which the longest insertion is taken."""

    @property
    def block_draws(self) -> int:
        return self.block_batches * self.batch * FIELDS

    @property
    def ring_rows(self) -> int:
        """Number of rows of a ring: three buffers, each for the unique keys of a block."""
        return int(3 * SLACK * self.block_keys)

    @property
    def block_keys(self) -> int:
        """Expected number of unique keys of a block."""
        apart = self.cold_share + self.new_share
        hot = self.hot_keys * -np.expm1(-self.block_draws * (1 - apart) / self.hot_keys)
        return int(hot + self.block_draws * apart)

    @property
    def num_batches(self) -> int:
        """Number of batches of the data: one block more than is trained, which the commit names as the next one."""
        return (self.warm_blocks + self.blocks + 1) * self.block_batches


FULL = Scale()
QUICK = Scale(256, 4, 4_000, 0.04, 0.005, 6_000, 2_000, 4096, 200, 64 << 20, 12, 6, 2)


def make_workflow(root: Path, num_keys: int, scale: Scale, direct: bool) -> Workflow:
    """Workflow with the same caps for all tables, except those of map and disk, which scale with the table."""
    categories = tuple(Category(name=f"c{field}", table=TABLE) for field in range(FIELDS))
    storage = Storage(device="1 GiB", host="1 GiB", disk="1 GiB", chunk_rows=scale.chunk_rows, direct=direct)
    workflow = Workflow(
        name="scale",
        data=Data(root=root, train=("train",), labels=("label",), categories=categories, shuffle_window=0),
        model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (16,)}),
        optimizer=Optimizer(rows=RowWiseAdagrad(storage="bfloat16")),
        storage=storage,
        schedule=Schedule(batch_size=scale.batch, block_batches=scale.block_batches),
        commit=Commit(every_minutes=None, keep=1, keep_best=False),
        device="cpu",
    )
    row_bytes = row_layout(workflow).num_bytes
    slabs = scale.device_rows + scale.host_rows
    chunks = -(-num_keys // scale.chunk_rows) - (-slabs // scale.chunk_rows) + 2 * scale.growth_chunks
    new_keys = int((scale.warm_blocks + scale.blocks + 1) * scale.block_draws * scale.new_share)
    caps = {
        "device": (scale.device_rows + scale.ring_rows) * row_bytes,
        "host": (scale.host_rows + scale.ring_rows + scale.chunk_rows) * row_bytes,
        "disk": chunks * log_chunk_bytes(scale.chunk_rows, row_bytes) + (1 << 20),
        "read": scale.read_bytes,
        "map": int(1.1 * most_bytes_for(num_keys + new_keys)),
        # Only the disk cap limits the growth, so that it is the same number of chunks for all tables.
        "log_growth": 1e6,
    }
    return workflow.model_copy(update={"storage": storage.model_copy(update=caps)})


def walk(num: int, length: int) -> I64:
    """[length] pseudo-random walk through 0 .. num - 1 that visits every number once and then starts again."""
    bits = (num - 1).bit_length()
    mask = np.uint64((1 << bits) - 1)
    at = np.arange(min(1 << bits, 3 * length + 1024), dtype=np.uint64)
    for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        at = (at * np.uint64(odd)) & mask
        at ^= at >> np.uint64(bits // 2)
    return np.resize(at[at < num].astype(np.int64), length)


def make_data(root: Path, num_keys: int, scale: Scale) -> None:
    """Write Parquet files of batches with the same shares of hot, cold and new keys. Values below `hot_keys` are hot,
    and those from `num_keys` on are new. The draws of hot keys are the same for every table."""
    draws = scale.batch * FIELDS
    cold, new = int(draws * scale.cold_share), int(draws * scale.new_share)
    cold_N = scale.hot_keys + walk(num_keys - scale.hot_keys, cold * scale.num_batches)
    schema = pa.schema([("label", pa.int8()), *((f"c{field}", pa.int32()) for field in range(FIELDS))])
    partial = root / "train.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    rng = np.random.default_rng(1)
    with pq.ParquetWriter(partial / "part-0.parquet", schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, scale.num_batches, scale.block_batches):
            batches = []
            for batch in range(first, min(first + scale.block_batches, scale.num_batches)):
                hot_N = rng.integers(0, scale.hot_keys, draws - cold - new)
                of_batch = [hot_N, cold_N[batch * cold :][:cold], num_keys + batch * new + np.arange(new)]
                batches.append(rng.permutation(np.concatenate(of_batch)).reshape(-1, FIELDS))
            values_NF = np.concatenate(batches).astype(np.int32)
            labels_N = (rng.random(len(values_NF)) < 0.25).astype(np.int8)
            writer.write_batch(pa.record_batch([labels_N, *values_NF.T.copy()], schema=schema))
    os.replace(partial, root / "train")


def fill(worker: Worker, num_keys: int, seed: int, init_std: float) -> None:
    """Write the initial rows of the keys of values 0 .. num_keys - 1 to the log, as if each had left the slabs once."""
    places: Places = worker.tiers.places
    log, chunk_RW, salt = worker.tiers.log, worker.tiers.chunk_RW, table_salt(TABLE)
    for first in range(0, num_keys, log.chunk_rows):
        values_R = np.arange(first, min(first + log.chunk_rows, num_keys))
        keys_R, rows_RW = np.empty(len(values_R), np.uint64), chunk_RW[: len(values_R)]
        hash_integers(values_R, salt, keys_R)
        write_first_rows(worker.tiers.row, seed, init_std, keys_R, rows_RW)
        at_R = places.chunks.add(len(keys_R))
        log.scatter(at_R, rows_RW)
        places.map.insert(keys_R, places.chunks.places_of(at_R))


def prepare(folder: Path, num_keys: int, scale: Scale, direct: bool, speed: DiskSpeed) -> None:
    """Make, unless they exist, the data and a run directory whose only commit has all keys and has trained nothing.
    `speed`: speed of the disk, passed so that the same reading rule applies to all tables."""
    if not (folder / "data" / "train").exists():
        make_data(folder / "data", num_keys, scale)
    run_dir = folder / "run"
    if any((run_dir / "commits").glob("*.json")):
        return
    shutil.rmtree(run_dir, ignore_errors=True)
    make_run_dir(run_dir, fresh=False)
    setup, source = set_up(make_workflow(folder / "data", num_keys, scale, direct), RAM, print)
    driver = open_driver(setup, source, run_dir, None, speed)
    workflow, crew = driver.setup.workflow, driver.crew
    crew.first(fill, num_keys, workflow.seed, workflow.model.init_std)
    driver.commit(DueCommit(next(driver.agenda.blocks(scale.block_batches))))
    crew.close()
    source.close()
    (run_dir / "reserve").unlink()


def open_driver(setup: Setup, source: Source, run_dir: Path, client: object, speed: DiskSpeed | None = None) -> Driver:
    """Open a run at its last commit, if it has one. `speed`: speed of the disk, by default that of the commit."""
    folder = replace(folder_of(setup, run_dir), speed=speed)
    return Driver(
        setup, source, folder, local_crew(setup, source, RAM, client), RAM.model, Progress(1, StringIO())
    ).open()
