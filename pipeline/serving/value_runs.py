"""Values of a table in sorted files (runs), which are merged when there are more than fit into memory.

A *run* holds the unique values of some rows with their counts, in the order of (key, value), in blocks that end where a
key ends. A merge holds one block of each run: entries up to the smallest of the blocks' last keys are
complete. This is an external merge sort (Knuth, volume 3, 5.4). It sorts by keys, which are hashes, since they compare
fast whatever the values are, and are spread evenly. Keys are not stored, but computed again from the values.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.prepare.counts import Counts, joined, keys_of, summed
from pipeline.storage.durable import damage_told, is_whole, replacing

RUN_BLOCK_BYTES = 512 << 10
"""Bytes of a run's block in memory. A merge holds a block of each of its runs, and the merged result of them."""
FAN_IN = 64
"""Maximum number of runs merged at once."""


def write_run(path: Path, name: str, parts: Iterable[Counts]) -> None:
    """Write a file with a run of the table `name`, durable when this returns. The parts must be in order, and each must
    end where a key ends; there is at least one, which may be empty."""
    # ZipInfo has a fixed time, so that the same run gives the same bytes.
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w") as members,
        members.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member,
    ):
        _write_blocks(member, parts)


def _write_blocks(member: Any, parts: Iterable[Counts]) -> None:
    blocks = _blocks(parts)
    first = next(blocks)
    schema = pa.schema({"value": first.values_U.type, "count": pa.int64()})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(member, schema, options=options) as writer:
        for block in chain([first], blocks):
            writer.write_batch(pa.record_batch([block.values_U, pa.array(block.counts_U)], schema))


def _blocks(parts: Iterable[Counts]) -> Iterator[Counts]:
    """Join and cut the parts to blocks of about `RUN_BLOCK_BYTES` each."""
    held, num_bytes = [], 0
    for part in parts:
        held.append(part)
        num_bytes += part.nbytes
        if num_bytes >= RUN_BLOCK_BYTES:
            yield from _cut(joined(held))
            held, num_bytes = [], 0
    if held:
        yield from _cut(joined(held))


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
    """Merge a table's runs: yield parts of a run with each value once; the first part is empty."""
    with ExitStack() as stack:
        heads = [_Head(stack, path, name) for path in paths]
        yield heads[0].block.slice(0, 0)
        while heads := [head for head in heads if head.refill()]:
            limit = min(head.block.keys_U[-1] for head in heads)
            yield summed([head.take(limit) for head in heads])


class _Head:
    """Reader of a run: the rest of its present block."""

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
        """Read the next block if this one is used up; return False at the end of the run."""
        while not self.block.size:
            if (block := next(self._rest(), None)) is None:
                return False
            self.block = block
        return True

    def take(self, limit: np.uint64) -> Counts:
        """Take the entries with keys up to `limit`, which is at most the block's last key."""
        end = int(np.searchsorted(self.block.keys_U, limit, "right"))
        taken, self.block = self.block.slice(0, end), self.block.slice(end, self.block.size)
        return taken


def few(paths: Sequence[Path], name: str, folder: Path) -> Sequence[Path]:
    """Merge files of a table in `folder`, which must exist, until at most `FAN_IN` are left, and return those.

    The groups that are merged depend only on the order of the files, so finished merges are not repeated."""
    level = 0
    while len(paths) > FAN_IN:
        groups = [paths[begin : begin + FAN_IN] for begin in range(0, len(paths), FAN_IN)]
        paths = [folder / f"{level}-{number:06}.runs" for number in range(len(groups))]
        for path, group in zip(paths, groups, strict=True):
            if not is_whole(path):
                write_run(path, name, merge_counts(group, name))
        level += 1
    return paths
