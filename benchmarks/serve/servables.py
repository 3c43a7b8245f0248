"""Servables with any number of keys: the small files of a trained run's export, and a table written directly to pages.

Keys are random. The hash of an integer is a bijection, so any key belongs to some integer in any column.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.once import Quiet, train
from pipeline.kernels.hashing import table_salt
from pipeline.models import DeepFM
from pipeline.records import F32, I64, RESERVED, U32, U64
from pipeline.serving.commit import open_commit
from pipeline.serving.exporting import ExportSettings, export
from pipeline.serving.pages import PageFormat, write_part
from pipeline.serving.servable import FENCES_FILE, ROWS_FOLDER, SERVABLE_MANIFEST, OpenedServable, open_files
from pipeline.storage.files import Files
from pipeline.workflow import Category, Commit, Data, Model, Schedule, Storage, Synthetic, Workflow

NUM_FIELDS = 26
PART_BYTES = 64 << 20


def small_servable(folder: Path, hidden: tuple[int, ...]) -> OpenedServable:
    """Train on a few examples and export a servable with 26 fields, D = 16 and few rows. Its dense part has one thread,
    since the server has one core."""
    fields = tuple(100 for _ in range(NUM_FIELDS))
    workflow = Workflow(
        name="bench",
        data=Data(
            root=folder / "data", train=("train",), labels=("click",),
            categories=tuple(Category(name=f"c{f}") for f in range(NUM_FIELDS)),
            synthetic=Synthetic(train_examples=20_000, keys_per_field=fields),
        ),
        model=Model(kind=DeepFM, embedding_dim=16, args={"hidden": hidden}),
        storage=Storage(device="32 MiB", host="32 MiB", disk="1 GiB", map="8 MiB", read="64 MiB"),
        schedule=Schedule(batch_size=1024, epochs=1, block_batches=4, threads=1),
        commit=Commit(every_minutes=None),
        device="cpu",
    )  # fmt: skip
    train(workflow, folder / "run", Quiet(), keep=True)
    opened = open_commit(folder / "run")
    with opened.held:
        export(opened, folder / "small", ExportSettings(), say=lambda line: None)
    return open_files(folder / "small")


@dataclass(frozen=True, slots=True)
class Table:
    """A written servable, and facts about its rows."""

    folder: Path
    num_keys: int
    fences_N: U32
    keys_N: U64
    """[N] keys in order, or none if there are many."""

    @property
    def first_keys(self) -> I64:
        """[pages] index of the first key of each page."""
        found: I64 = np.searchsorted(self.keys_N, self.fences_N.astype(np.uint64) << np.uint64(32))
        return found


def write_servable(small: OpenedServable, folder: Path, num_keys: int, keep_keys: bool) -> Table:
    """Write a servable with random keys, part by part, with the small files of another servable."""
    files, form = Files(), small.page_format
    shutil.copytree(small.folder, folder, ignore=lambda at, names: {ROWS_FOLDER, FENCES_FILE, SERVABLE_MANIFEST})
    (folder / ROWS_FOLDER).mkdir()
    sums, fences, kept = [], [], []
    written = 0
    for number, (keys_N, weights_NC) in enumerate(parts_of(form, num_keys)):
        found, fences_M = write_part(files, folder / ROWS_FOLDER, number, form, keys_N, weights_NC)
        written += len(keys_N)
        sums.append(found)
        fences.append(fences_M)
        if keep_keys:
            kept.append(keys_N)
    fences_N = np.concatenate(fences)
    named = small.manifest.files | {FENCES_FILE: files.replace(folder / FENCES_FILE, [fences_N])}
    update = {"parts": tuple(sums), "files": named, "num_rows": written}
    files.replace(folder / SERVABLE_MANIFEST, [small.manifest.model_copy(update=update).content])
    return Table(folder, written, fences_N, np.concatenate([np.empty(0, np.uint64), *kept]))


def parts_of(form: PageFormat, num_keys: int, seed: int = 0) -> Iterator[tuple[U64, F32]]:
    """Yield ascending random keys and weights, in consecutive key ranges of equal size."""
    rng = np.random.default_rng(seed)
    num_parts = 1
    while num_parts * PART_BYTES < num_keys * form.row_bytes:
        num_parts *= 2
    weights_NC = rng.standard_normal((num_keys // num_parts + 1, form.num_weights), np.float32) / np.float32(100)
    for part in range(num_parts):
        count = num_keys * (part + 1) // num_parts - num_keys * part // num_parts
        width = (1 << 64) // num_parts
        keys_N = rng.integers(part * width, (part + 1) * width - 1, count, np.uint64, endpoint=True)
        keys_N = np.unique(keys_N)
        keys_N = keys_N[keys_N != RESERVED]
        yield keys_N, weights_NC[: len(keys_N)]


def values_of(keys_FN: U64) -> I64:
    """[F, N] integers whose keys in the columns c0, c1, ... these are."""
    salts_F1 = np.array([table_salt(f"c{f}") for f in range(len(keys_FN))], np.uint64)[:, None]
    values_FN: I64 = (unmix(keys_FN) ^ salts_F1).view(np.int64)
    return values_FN


def unmix(mixed_N: U64) -> U64:
    """Inverse of `pipeline.kernels.hashing`."""
    x = mixed_N
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        bits = x >> np.uint64(shift)
        x = x ^ bits ^ (bits >> np.uint64(shift))
        x = x * np.uint64(pow(factor, -1, 1 << 64))
    return x


def check_space(folder: Path, num_keys: int, form: PageFormat) -> int:
    """Number of keys, reduced to 60 M if the disk is small. Raises SystemExit if there is no room for these."""
    free = shutil.disk_usage(folder).free
    for count in (num_keys, min(num_keys, 60_000_000)):
        if 1.2 * count * form.row_bytes < free:
            return count
    raise SystemExit(f"{folder} has {free / 2**30:.1f} GiB free, too few for {count:,} keys: choose another --data")
