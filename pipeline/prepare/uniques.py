"""Number of unique keys of a column: exact up to a bound, estimated beyond it, in bounded memory.

The state is a function of the set of keys alone: the keys themselves up to `bound` of them, then HyperLogLog registers.
So parts may be counted and merged in any order, and repeatedly, and a killed run goes on from what its parts saved. A
part saves one file; `fold` merges such files into one folded file and removes them, so the disk holds the files of a
few parts and at most 8 bytes times `bound` per column, whatever the size of the input.
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
from pipeline.prepare.layout import PART, named
from pipeline.records import U64
from pipeline.storage.durable import checksum_so_far, damage_told, is_whole, replacing
from pipeline.storage.files import Files

BOUND = 1 << 20
PENDING_BYTES = 64 << 20
"""Minimum size of the parts' files together before they are folded. They must also be as large as the folded file,
since that is read and written as a whole."""
FOLDED = "folded.npz"


class Uniques:
    """The unique keys of one column."""

    def __init__(self, bound: int = BOUND) -> None:
        self._bound = bound
        self.array: NDArray[Any] = np.empty(0, np.uint64)
        """Sorted keys (uint64) if there are at most `bound`, else registers [NUM_REGISTERS] (uint8)."""

    @property
    def is_exact(self) -> bool:
        return bool(self.array.dtype == np.uint64)

    def is_sound(self) -> bool:
        """True if the array, read from a file, has a valid type and shape."""
        if self.is_exact:
            return self.array.ndim == 1
        return self.array.dtype == np.uint8 and self.array.shape == (NUM_REGISTERS,)

    def add(self, keys_N: U64) -> None:
        """Add keys in any order, with repetitions."""
        if self.is_exact:
            self.array = distinct(np.concatenate([self.array, keys_N]))
            if len(self.array) <= self._bound:
                return
            keys_N, self.array = self.array, np.zeros(NUM_REGISTERS, np.uint8)
        add_keys(keys_N, self.array)

    def count(self) -> tuple[int, bool]:
        """Number of unique keys, and True if it is exact; an estimate has a standard error of 0.8 %."""
        return (len(self.array), True) if self.is_exact else (round(estimate(self.array)), False)


def distinct(keys_N: U64) -> U64:
    """[at most N] unique keys, sorted. NumPy's `unique` takes ten times as long."""
    keys_N = np.sort(keys_N)
    first_N = np.ones(len(keys_N), np.bool_)
    np.not_equal(keys_N[1:], keys_N[:-1], out=first_N[1:])
    return keys_N[first_N]


def keys_of(values: pa.Array, name: str) -> U64:
    """[N] keys of integers or texts in a workflow's category `name`; those of nulls stand for a missing value."""
    keys_N = np.empty(len(values), np.uint64)
    fill_keys(values, InputColumn(name, "data.categories", table=name), None, keys_N)
    return keys_N


def hashes_of(column: pa.ChunkedArray | pa.Array, name: str) -> U64:
    """[at most N] unique keys, sorted, of a column of integers, texts, a dictionary or lists of those. Nulls are left
    out."""
    return distinct(np.concatenate([np.empty(0, np.uint64), *(_hashes_of(chunk, name) for chunk in chunks(column))]))


def _hashes_of(chunk: pa.Array, name: str) -> U64:
    # A dictionary may contain values that occur in no row.
    values = chunk.unique()
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return keys_of(values.drop_null(), name)


def chunks(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    """Arrays of a column's values; for lists, of their elements."""
    arrays = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [array.flatten() if is_list(array.type) else array for array in arrays]


def path_of_part(folder: Path, part: str) -> Path:
    return folder / f"{part}.npz"


def save_part(folder: Path, part: str, keys: Sequence[U64]) -> str:
    """Save the unique keys of a part's columns, in any order, durably under the part's name in `folder`, which must
    exist. Returns the checksum, since `fold` may remove the file at any time."""
    with replacing(path_of_part(folder, part)) as file:
        with zipfile.ZipFile(file, "w") as members:
            for number, keys_U in enumerate(keys):
                _save(members, f"{number}", keys_U)
        return checksum_so_far(file)


def fold(folder: Path, names: Sequence[str], bound: int = BOUND, min_bytes: int = PENDING_BYTES) -> None:
    """Merge the files of parts into the folded file, and remove them. Does nothing until there is enough to fold (see
    `PENDING_BYTES`), so it may be called after every part. `names`: columns, in the order of `save_part`'s keys.

    Only one process may fold at a time; others may save parts. If it is killed at any instant, the next call does the
    rest: merging a part twice changes nothing. Memory: one column's keys in the parts' files, and `bound` more. Raises
    ValueError if a file is damaged.
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
    """Names of the parts whose keys are in the folded file. A damaged folded file is removed; then there are none."""
    folded = folder / FOLDED
    if not is_whole(folded):
        folded.unlink(missing_ok=True)
    return _parts_in(folded)


def counts(folder: Path, names: Sequence[str], bound: int = BOUND) -> dict[str, tuple[int, bool]]:
    """`Uniques.count` of each column, over all parts that were saved in the folder."""
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
    """Add an array to a zip file as NumPy does, but with a fixed time, so that the bytes are reproducible."""
    with members.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        np.save(member, array)


@contextmanager
def _members(path: Path) -> Iterator[Any]:
    with damage_told(path), np.load(path) as members:
        yield members


def _bytes_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
