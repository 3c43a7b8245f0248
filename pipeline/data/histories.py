"""The sequences of a window: lists of keys and of numbers, truncated to their latest values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from pipeline.data.bags import Bags
from pipeline.data.decode import fill_keys
from pipeline.data.files import InputColumn
from pipeline.files.buffers import numeric_values
from pipeline.records import I64, U64

Piece = tuple[int, pa.Array, U64 | None]
"""Consecutive rows of a column: number of the first row, the rows, and the keys of their dictionary."""


class Histories:
    """Bags of the sequences' lists, in file order."""

    def __init__(self, columns: Sequence[InputColumn]) -> None:
        """`columns`: all columns of a window; the columns of a sequence are adjacent."""
        in_sequences = [column for column in columns if column.sequence]
        self._columns = [list(of_one) for _, of_one in groupby(in_sequences, lambda column: column.sequence)]
        self._bags = {column.name: Bags("uint64" if column.is_item else "float32") for column in in_sequences}
        self.names = tuple(self._bags)
        """Names of all columns of sequences."""
        self.items = tuple(self._bags[column.name] for column in in_sequences if column.is_item)
        """Bags of keys, one per item list."""
        self.numbers = tuple(self._bags[column.name] for column in in_sequences if not column.is_item)
        """Bags of numbers, one per list of numbers."""
        self.clear()

    def clear(self) -> None:
        self.cut_N: I64 = np.zeros(0, np.int64)
        """Number of truncated sequences of each example."""
        for bags in self._bags.values():
            bags.clear()

    def append(self, where: str, pieces: Mapping[str, Iterable[Piece]]) -> None:
        """Append the same rows of each column. `where`: name of their row group or table, used in messages.

        Raises ValueError, with the row, if lists of a sequence differ in length within an example, if a list contains a
        null, or if a number is not finite."""
        for columns in self._columns:
            first, lengths_N, first_row = columns[0], np.zeros(0, np.int64), 0
            for column in columns:
                found = list(pieces[column.name])
                first_row = found[0][0] if found else 0
                own_N = np.concatenate([np.zeros(0, np.int64), *self._fill(where, column, found)])
                if column is first:
                    lengths_N = own_N
                elif len(at_N := np.flatnonzero(own_N != lengths_N)):
                    raise ValueError(
                        f"{where}, row {first_row + at_N[0]}: column {column.name!r} has {own_N[at_N[0]]:,} values and "
                        f"{first.name!r} {lengths_N[at_N[0]]:,}, in {len(at_N):,} rows from {first_row} on; lists of "
                        f"sequence {column.sequence!r} (data.sequences) must have the same length in one example: "
                        "correct the data, or make them different sequences"
                    )
            if first is self._columns[0][0]:
                self.cut_N = np.concatenate([self.cut_N, np.zeros(len(lengths_N), np.int64)])
            self.cut_N[len(self.cut_N) - len(lengths_N) :] += lengths_N > first.max_length

    def _fill(self, where: str, column: InputColumn, pieces: Sequence[Piece]) -> Iterator[I64]:
        """Append the latest values of each list of a column. Yields the lists' lengths before truncation."""
        for first_row, array, dictionary in pieces:
            lengths_N, kept_N, values = latest(array, column.max_length)
            what = f"{where}, column {column.name!r} ({column.setting})"
            if values.null_count:
                at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
                raise ValueError(
                    f"{what}: {values.null_count:,} nulls in lists, the first in row {first_row + _row(kept_N, at)}; "
                    "leave them out of all lists of the sequence, or give them a value"
                )
            bags = self._bags[column.name]
            out_V, offsets = bags.room(len(array), len(values))
            if column.is_item:
                fill_keys(values, column, dictionary, out_V)
            else:
                plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
                out_V[:] = plain.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
                if len(bad_V := np.flatnonzero(~np.isfinite(out_V))):
                    value, row = values[int(bad_V[0])].as_py(), first_row + _row(kept_N, int(bad_V[0]))
                    raise ValueError(
                        f"{what}: {len(bad_V):,} values are not finite in float32, the first is {value!r} in row "
                        f"{row}; correct the data, or leave the column out"
                    )
            offsets[1:] = offsets[0] + np.cumsum(kept_N)
            bags.count += len(array)
            yield lengths_N


def latest(lists: pa.Array, most: int) -> tuple[I64, I64, pa.Array]:
    """Return the lengths [N] of the lists, 0 for a null list; the number of values [N] kept of each, at most `most`;
    and those last values of each list, concatenated."""
    ends_N = numeric_values(lists.offsets)[0].astype(np.int64)
    lengths_N = np.diff(ends_N)
    if lists.null_count:
        lengths_N[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    kept_N = np.minimum(lengths_N, most)
    num_kept = int(kept_N.sum())
    if num_kept == ends_N[-1] - ends_N[0]:
        return lengths_N, kept_N, lists.values.slice(int(ends_N[0]), num_kept)
    begins_N = ends_N[:-1] + lengths_N - kept_N
    places_V = np.repeat(begins_N - (np.cumsum(kept_N) - kept_N), kept_N) + np.arange(num_kept)
    return lengths_N, kept_N, lists.values.take(pa.array(places_V))


def _row(kept_N: I64, value: int) -> int:
    """Number of the list that contains a value."""
    return int(np.searchsorted(np.cumsum(kept_N), value, side="right"))
