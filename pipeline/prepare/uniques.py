"""How many different keys a column has: exactly up to a bound, estimated beyond it, and in bounded memory.

What is kept is a function of the set of keys alone: the keys themselves while there are no more than `bound`, then
HyperLogLog registers. So parts may be counted, united and counted again in any order, and a killed run goes on from
what its parts saved. A part saves one file; `fold` unites such files with what was folded before and removes them, so
that the disk holds as much as a few parts and 8 bytes for each of at most `bound` keys a column, whatever the input.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.decode import fill_keys, is_list
from pipeline.data.files import InputColumn
from pipeline.kernels.hyperloglog import NUM_REGISTERS, add_keys, estimate
from pipeline.prepare.durable import checksum_so_far, damage_told, is_whole, replacing
from pipeline.prepare.layout import PART, named
from pipeline.records import U64
from pipeline.storage.files import Files

BOUND = 1 << 20
PENDING_BYTES = 64 << 20
"""Parts' files are folded once they hold so much, and no less than what was folded: that is read and written again."""
FOLDED = "folded.npz"


class Uniques:
    """The different keys of one column."""

    def __init__(self, bound: int = BOUND) -> None:
        self._bound = bound
        self.array: NDArray[Any] = np.empty(0, np.uint64)
        """The keys, sorted (uint64); of more than `bound`: registers [NUM_REGISTERS] (uint8)."""

    @property
    def is_exact(self) -> bool:
        return bool(self.array.dtype == np.uint64)

    def is_sound(self) -> bool:
        """Return whether the array is what it may be, after it was read."""
        if self.is_exact:
            return self.array.ndim == 1
        return self.array.dtype == np.uint8 and self.array.shape == (NUM_REGISTERS,)

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
    fill_keys(values, InputColumn(name, "data.categories", table=name), None, keys_N)
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


def path_of_part(folder: Path, part: str) -> Path:
    return folder / f"{part}.npz"


def save_part(folder: Path, part: str, table: pa.Table, names: Sequence[str]) -> str:
    """Save the keys of a part's columns, durably, under the part's name in `folder`, which is there. Again is the same,
    to the byte. Returns the file's checksum: `fold` may remove it at any time."""
    with replacing(path_of_part(folder, part)) as file:
        with zipfile.ZipFile(file, "w") as members:
            for number, name in enumerate(names):
                _save(members, f"{number}", hashes_of(table[name], name))
        return checksum_so_far(file)


def fold(folder: Path, names: Sequence[str], bound: int = BOUND, min_bytes: int = PENDING_BYTES) -> None:
    """Unite what parts saved with what was folded before, and remove their files. Does nothing where that is not worth
    it yet, so it may be called after every part. `names`: those of `save_part`, in the same order.

    One process folds at a time; others may save parts. Killed at any instant, the next call does what is left: a part
    that is united twice changes nothing. Memory: the keys that one column has in the parts' files, and `bound` more.
    ValueError: a file is damaged.
    """
    parts, folded = list(named(folder, rf"{PART}\.npz")), folder / FOLDED
    before = folded.stat().st_size if folded.exists() else 0
    if not parts or _bytes_of(parts) < (min_bytes and max(min_bytes, before)):
        return
    with replacing(folded) as file, zipfile.ZipFile(file, "w") as members:
        _save(members, "parts", np.array(sorted(_parts_in(folded) | {part.stem for part in parts})))
        for number in range(len(names)):
            uniques = _folded(folded, number, bound)
            uniques.add(np.concatenate([_keys_in(part, number) for part in parts]))
            _save(members, f"{number}", uniques.array)
    for part in parts:
        Files().remove(part)


def folded_parts(folder: Path) -> frozenset[str]:
    """Return the parts whose keys are united. What was folded and is damaged is removed: then of none."""
    folded = folder / FOLDED
    if not is_whole(folded):
        folded.unlink(missing_ok=True)
    return _parts_in(folded)


def counts(folder: Path, names: Sequence[str], bound: int = BOUND) -> dict[str, tuple[int, bool]]:
    """Return of each column what `Uniques.count` says of all parts that were saved in the folder."""
    fold(folder, names, bound, min_bytes=0)
    return {name: _folded(folder / FOLDED, number, bound).count() for number, name in enumerate(names)}


def _parts_in(folded: Path) -> frozenset[str]:
    if not folded.exists():
        return frozenset()
    with _members(folded) as members:
        return frozenset(map(str, members["parts"]))


def _folded(path: Path, number: int, bound: int) -> Uniques:
    uniques = Uniques(bound)
    if path.exists():
        with _members(path) as members:
            uniques.array = members[f"{number}"]
            if not uniques.is_sound():
                raise ValueError("expected unique keys, or counters of them")
    return uniques


def _keys_in(part: Path, number: int) -> U64:
    with _members(part) as members:
        keys_N: U64 = members[f"{number}"]
        if keys_N.dtype != np.uint64 or keys_N.ndim != 1:
            raise ValueError("expected keys")
    return keys_N


def _save(members: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """As NumPy does, but for the time of day."""
    with members.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        np.save(member, array)


@contextmanager
def _members(path: Path) -> Iterator[Any]:
    with damage_told(path), np.load(path) as members:
        yield members


def _bytes_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
