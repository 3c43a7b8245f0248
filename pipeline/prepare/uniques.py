"""How many different keys a column has: exactly up to a bound, estimated beyond it, and in bounded memory.

What is kept is a function of the set of keys alone: the keys themselves while there are no more than `bound`, then
HyperLogLog registers. So parts may be counted, united and counted again in any order, and a killed run goes on from
what its parts saved. A part saves one file; `fold` unites such files with what was folded before and removes them, so
that the disk holds as much as a few parts and 8 bytes for each of at most `bound` keys a column, whatever the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.decode import fill_keys, is_list
from pipeline.data.files import Column
from pipeline.kernels.hyperloglog import NUM_REGISTERS, add_keys, estimate
from pipeline.prepare.durable import replacing
from pipeline.records import U64
from pipeline.storage.files import Files

BOUND = 1 << 20
PENDING_BYTES = 64 << 20
"""Parts' files are folded once they hold so much, and no less than what was folded: that is read and written again."""
PART, FOLDED = ".npz", ".npy"


class Uniques:
    """The different keys of one column."""

    def __init__(self, bound: int = BOUND) -> None:
        self._bound = bound
        self.array: NDArray[Any] = np.empty(0, np.uint64)
        """The keys, sorted (uint64); of more than `bound`: registers [NUM_REGISTERS] (uint8)."""

    @property
    def is_exact(self) -> bool:
        return bool(self.array.dtype == np.uint64)

    def add(self, keys_N: U64) -> None:
        """Keys in any order, as often as they come."""
        if self.is_exact:
            self.array = distinct(np.concatenate([self.array, keys_N]))
            if len(self.array) <= self._bound:
                return
            keys_N, self.array = self.array, np.zeros(NUM_REGISTERS, np.uint8)
        add_keys(keys_N, self.array)

    def count(self) -> tuple[int, bool]:
        """How many there are, and whether that is exact: else it is within 0.8 % (one standard error)."""
        return (len(self.array), True) if self.is_exact else (round(estimate(self.array)), False)


def distinct(keys_N: U64) -> U64:
    """[at most N] the different keys, sorted. NumPy's own `unique` takes ten times as long."""
    keys_N = np.sort(keys_N)
    first_N = np.ones(len(keys_N), np.bool_)
    np.not_equal(keys_N[1:], keys_N[:-1], out=first_N[1:])
    return keys_N[first_N]


def keys_of(values: pa.Array, name: str) -> U64:
    """[N] the keys that a workflow's category `name` has of these integers or texts, none of which is null."""
    keys_N = np.empty(len(values), np.uint64)
    fill_keys(values, Column(name, "data.categories", table=name), None, keys_N)
    return keys_N


def hashes_of(column: pa.ChunkedArray | pa.Array, name: str) -> U64:
    """[at most N] the different keys of a column of integers, texts, a dictionary or lists of those, sorted. Nulls have
    none."""
    return distinct(np.concatenate([np.empty(0, np.uint64), *(_hashes_of(chunk, name) for chunk in chunks(column))]))


def _hashes_of(chunk: pa.Array, name: str) -> U64:
    # A dictionary may hold values that no row has.
    values = chunk.unique()
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return keys_of(values.drop_null(), name)


def chunks(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    """The arrays that hold a column's values: of lists, their elements."""
    arrays = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [array.flatten() if is_list(array.type) else array for array in arrays]


def save_part(folder: Path, part: str, table: pa.Table, names: Sequence[str]) -> None:
    """Save the keys of a part's columns, durably, under the part's name in `folder`, which is there."""
    with replacing(folder / f"{part}{PART}") as file:
        np.savez(file, *(hashes_of(table[name], name) for name in names))


def fold(folder: Path, names: Sequence[str], bound: int = BOUND, least_bytes: int = PENDING_BYTES) -> None:
    """Unite what parts saved with what was folded before, and remove their files. Does nothing where that is not worth
    it yet, so it may be called after every part. `names`: those of `save_part`, in the same order.

    One process folds at a time; others may save parts. Killed at any instant, the next call does what is left: a part
    that is united twice changes nothing. Memory: the keys that one column has in the parts' files, and `bound` more.
    """
    parts, before = sorted(folder.glob(f"*{PART}")), list(folder.glob(f"*{FOLDED}"))
    if not parts or _bytes_of(parts) < (least_bytes and max(least_bytes, _bytes_of(before))):
        return
    for number in range(len(names)):
        uniques = _folded(folder, number, bound)
        uniques.add(np.concatenate([_keys_of_part(part, number) for part in parts]))
        with replacing(_path(folder, number)) as file:
            np.save(file, uniques.array)
    for part in parts:
        Files().remove(part)


def counts(folder: Path, names: Sequence[str], bound: int = BOUND) -> dict[str, tuple[int, bool]]:
    """Of each column what `Uniques.count` says of all parts that were saved in the folder."""
    fold(folder, names, bound, least_bytes=0)
    return {name: _folded(folder, number, bound).count() for number, name in enumerate(names)}


def _folded(folder: Path, number: int, bound: int) -> Uniques:
    uniques = Uniques(bound)
    if (path := _path(folder, number)).exists():
        uniques.array = np.load(path)
    return uniques


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:04}{FOLDED}"


def _keys_of_part(part: Path, number: int) -> U64:
    with np.load(part) as arrays:
        keys_N: U64 = arrays[f"arr_{number}"]
    return keys_N


def _bytes_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
