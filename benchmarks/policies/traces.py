"""Traces for the policy benchmark: the unique keys of each block, in training order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cases import keys_per_field
from pipeline.data.agenda import Agenda
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.data.synthetic import draw_keys
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.records import U64
from pipeline.workflow import Category, Data
from workflows.frappe import FIELDS

ZIPF = 1.05
CRITEO_FIELDS = tuple(f"c{n}" for n in range(1, 27))


@dataclass(frozen=True)
class Trace:
    name: str
    blocks: list[U64]
    """Unique keys [U] of each block."""


def zipf(name: str, num_keys: int, batch: int, block_batches: int, num_blocks: int, seed: int = 0) -> Trace:
    """Keys drawn in Criteo's shape: 26 fields, a Zipf exponent of 1.05; every block is drawn again."""
    fields, table = keys_per_field(num_keys), KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
    first_F = np.cumsum([0, *fields])
    rng, blocks = np.random.default_rng(seed), []
    for _ in range(num_blocks):
        keys = [
            (first + draw_keys(rng, batch * block_batches, size, ZIPF)).astype(np.uint64)
            for first, size in zip(first_F[:-1].tolist(), fields, strict=True)
        ]
        blocks.append(unique(np.concatenate(keys), table))
    return Trace(name, blocks)


def unique(keys_V: U64, table: KeyTable) -> U64:
    """Distinct keys [U], in the order of their first uses."""
    table.clear()
    table.add(keys_V, np.empty(len(keys_V), np.int32))
    return table.keys_U.copy()


def files(name: str, data: Data, batch: int, epochs: int) -> Trace:
    """Keys of the training split of real files, in blocks of one batch."""
    source, buffer, table = Source(data, 0, keys_only=True), ReadBuffer(1 << 24), KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
    with closing(source):
        blocks = Agenda({"train": source.num_examples["train"]}, batch, epochs).blocks(1)
        return Trace(name, [unique(source.read(block, buffer).keys_V, table) for block in blocks])


def criteo(root: Path, shuffled: bool) -> Data:
    return Data(
        root=root, train=("part-*.parquet",), labels=("label",), shuffle_window=(1 << 17) * shuffled,
        categories=tuple(Category(name=name) for name in CRITEO_FIELDS),
    )  # fmt: skip


def frappe(root: Path) -> Data:
    categories = tuple(Category(name=name) for name in FIELDS)
    return Data(root=root, train=("train.parquet",), labels=("label",), categories=categories)


def all_traces(shared: Path | None, quick: bool) -> Iterator[Trace]:
    """Every trace in turn; traces of real data only if `shared` contains them."""
    if quick:
        yield zipf("zipf, k = 1", 20_000, 256, 1, 60)
        return
    yield zipf("2 M keys, k = 1", 2_000_000, 8192, 1, 600)
    yield zipf("2 M keys, k = 2", 2_000_000, 8192, 2, 300)
    yield zipf("20 M keys, k = 16", 20_000_000, 8192, 16, 200)
    if shared is None:
        return
    if (root := shared / "criteo_1tb_sample").is_dir():
        yield files("Criteo sample, file order", criteo(root, False), 512, 1)
        yield files("Criteo sample, 3 shuffled epochs", criteo(root, True), 512, 3)
    if (root := shared / "frappe_x1").is_dir():
        yield files("Frappe, 3 epochs", frappe(root), 64, 3)
