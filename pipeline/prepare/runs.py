"""How often values occur, in files sorted by the values' keys: what is larger than memory is counted by merging them.

A *run* holds the different values of some rows of a column with their counts, in the order of (key, value), in blocks
that end where a key ends. Runs are merged while a block of each is held: what lies up to the least of the blocks' last
keys is complete. That is an external merge sort (Knuth, volume 3, 5.4); by keys, which are hashes, since those compare
fast whatever the values are, and are spread evenly. Keys are not stored: they are made again from the values.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.prepare.counts import Counts, gather, summed
from pipeline.prepare.durable import checksum_so_far, damage_told, is_whole, replacing
from pipeline.prepare.uniques import keys_of

RUN_BLOCK_BYTES = 512 << 10
"""Of a run's block, in memory. A merge holds a block of each of its runs, and what becomes of them."""
FAN_IN = 64
"""Runs that are merged at once."""


def write_runs(path: Path, runs: Mapping[str, Iterable[Counts]]) -> str:
    """A file of a run for each column, durable when this returns; returns its checksum. Of each run the parts come in
    order, and each ends where a key ends; there is at least one, which may be empty."""
    with replacing(path) as file:
        with zipfile.ZipFile(file, "w") as members:
            for name, parts in runs.items():
                # Its time is none, so that the same runs are the same bytes.
                with members.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                    _write_run(member, parts)
        return checksum_so_far(file)


def _write_run(member: Any, parts: Iterable[Counts]) -> None:
    blocks = _blocks(parts)
    first = next(blocks)
    schema = pa.schema({"value": first.values_U.type, "count": pa.int64()})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(member, schema, options=options) as writer:
        for block in chain([first], blocks):
            writer.write_batch(pa.record_batch([block.values_U, pa.array(block.counts_U)], schema))


def _blocks(parts: Iterable[Counts]) -> Iterator[Counts]:
    """The parts again, joined and cut to about `BLOCK_BYTES` each."""
    for whole in gather(parts, lambda part: part.nbytes, RUN_BLOCK_BYTES):
        yield from _cut(whole)


def _cut(counts: Counts) -> Iterator[Counts]:
    rows = max(1, counts.size * RUN_BLOCK_BYTES // max(1, counts.nbytes))
    begin, end = 0, -1
    while end < counts.size:
        end = counts.size
        if begin + rows < end:
            end = int(np.searchsorted(counts.keys_U, counts.keys_U[begin + rows - 1], "right"))
        yield counts.slice(begin, end)
        begin = end


def merge_counts(paths: Sequence[Path], name: str) -> Iterator[Counts]:
    """The values of a column's runs, each once, in parts of a run; the first part is empty."""
    with ExitStack() as stack:
        heads = [_Head(stack, path, name) for path in paths]
        yield heads[0].block.slice(0, 0)
        while heads := [head for head in heads if head.refill()]:
            limit = min(head.block.keys_U[-1] for head in heads)
            yield summed([head.take(limit) for head in heads])


class _Head:
    """The rest of the block of a run that is being read."""

    def __init__(self, stack: ExitStack, path: Path, name: str) -> None:
        self._path, self._name = path, name
        with damage_told(path):
            members = stack.enter_context(zipfile.ZipFile(path))
            self._blocks = stack.enter_context(pa.ipc.open_stream(stack.enter_context(members.open(name))))
            self.block = next(self._rest())

    def _rest(self) -> Iterator[Counts]:
        with damage_told(self._path):
            for block in self._blocks:
                values, counts = block.columns
                yield Counts(values, keys_of(values, self._name), counts.to_numpy())

    def refill(self) -> bool:
        """Read the next block if nothing is left of this one; whether there is anything."""
        while not self.block.size:
            if (block := next(self._rest(), None)) is None:
                return False
            self.block = block
        return True

    def take(self, limit: np.uint64) -> Counts:
        """Take what has a key up to this, which is no greater than the block's last."""
        end = int(np.searchsorted(self.block.keys_U, limit, "right"))
        taken, self.block = self.block.slice(0, end), self.block.slice(end, self.block.size)
        return taken


def few(paths: Sequence[Path], name: str, folder: Path) -> Sequence[Path]:
    """At most `FAN_IN` files with all that these have of a column, some of them merged in `folder`, which is there.

    Which are merged together is a function of their order, so that a merge which was done is not done again."""
    level = 0
    while len(paths) > FAN_IN:
        groups = [paths[begin : begin + FAN_IN] for begin in range(0, len(paths), FAN_IN)]
        paths = [folder / f"{level}-{number:06}.runs" for number in range(len(groups))]
        for path, group in zip(paths, groups, strict=True):
            if not is_whole(path):
                write_runs(path, {name: merge_counts(group, name)})
        level += 1
    return paths
