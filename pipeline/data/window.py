"""The window of examples shuffled together, decoded column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.data.bags import Bags
from pipeline.data.decode import fill_bags, fill_floats, fill_keys, mask_labels
from pipeline.data.files import InputColumn
from pipeline.data.groups import Chunk
from pipeline.data.histories import Histories
from pipeline.data.outside import Outside
from pipeline.kernels import assemble
from pipeline.machine.limits import aligned_empty
from pipeline.machine.threads import Threads, cut_range
from pipeline.records import F32, I64, U64, Array


class Bank:
    """Columns of one type, stored as rows of one array; one thread decodes and shuffles them."""

    def __init__(self, columns: list[InputColumn], size: int, dtype: str) -> None:
        self._columns = columns
        # One more row than columns: decoding fills all rows but the first, and `shuffle` permutes each row into the
        # previous one.
        self._values_CN: Array = aligned_empty((len(columns) + 1, size), dtype)

    @property
    def values_CN(self) -> Any:
        """[C, N] one row per column, shuffled."""
        return self._values_CN[:-1]

    @property
    def decoded_CN(self) -> Any:
        """[C, N] one row per column in file order; valid until `shuffle`."""
        return self._values_CN[1:]

    def append(
        self, to: int, where: str, chunks: dict[str, list[Chunk]], begin: int, end: int, outside: Outside | None
    ) -> None:
        for out, column in zip(self._values_CN[1:], self._columns, strict=True):
            if column.name not in chunks:
                # Labels, which scoring does not read.
                out[to + begin : to + end] = 0
                continue
            for row, array, dictionary in _pieces(chunks[column.name], begin, end):
                _fill(array, column, dictionary, where, row, out[to + row : to + row + len(array)], outside)

    def shuffle(self, order: I64) -> None:
        assemble.permute_columns(self._values_CN, order)


class Window:
    """Arrays for `size` examples, reused for every window. `threads` share the columns."""

    def __init__(self, columns: list[InputColumn], kinds: dict[str, str], size: int, threads: Threads) -> None:
        self.size, self._threads = size, threads
        floats = [c for c in columns if not c.has_keys and not c.sequence]
        self._masked = [c for c in floats if c.task]
        groups = [c for c in columns if c.is_group]
        single = [c for c in columns if c.is_category and not c.is_multi(kinds)]
        self._multi = [c for c in columns if c.is_category and c.is_multi(kinds)]
        self.histories = Histories(columns)
        """Sequences, in file order, not shuffled."""
        self._floats = Bank(floats, size, "float32")
        fields = cut_range(len(single), threads.num_threads)
        self._keys = [(some, Bank(single[some], size, "uint64")) for some in fields]
        self._groups = Bank(groups, size if groups else 0, "uint64")
        self._banks = [self._floats, *(bank for _, bank in self._keys), *([self._groups] if groups else [])]
        self.bags = (*(Bags() for _ in self._multi), *self.histories.items)
        """Bags of each multi-hot field and of each item list, in file order, not shuffled: `order` indexes them."""
        self.order: I64 = aligned_empty(0, "int64")
        """[count] position in file order of each example of the shuffled window; empty before `shuffle`."""
        self.count = 0

    @property
    def floats_CN(self) -> F32:
        """Labels, weight and numbers, one row per column, shuffled."""
        floats_CN: F32 = self._floats.values_CN
        return floats_CN

    @property
    def groups_N(self) -> U64:
        """Groups of the metrics, shuffled. Defined only if the workflow names a group column."""
        groups_N: U64 = self._groups.values_CN[0]
        return groups_N

    def key_banks(self) -> Iterator[tuple[slice, U64]]:
        """Pairs of a slice of the single-valued fields and their shuffled keys, one row per field."""
        for fields, bank in self._keys:
            yield fields, bank.values_CN

    def decoded_keys(self) -> Iterator[U64]:
        """Keys [N] of each single-valued field in file order; valid until `shuffle`."""
        for _, bank in self._keys:
            yield from bank.decoded_CN

    def bag_keys(self, at_N: I64) -> Iterator[U64]:
        """For each multi-hot field and item list, the keys of the bags of the examples at these positions in file
        order."""
        offsets = np.zeros(len(at_N) + 1, np.int64)
        for bags in self.bags:
            keys_V = np.empty(assemble.bag_sizes(bags.offsets, at_N), np.uint64)
            assemble.gather_bags(bags.offsets, bags.keys, at_N, offsets, keys_V)
            yield keys_V

    def clear(self) -> None:
        self.count, self.order = 0, self.order[:0]
        for bags in self.bags:
            bags.clear()
        self.histories.clear()

    def append(
        self, where: str, chunks: dict[str, list[Chunk]], begin: int, end: int, outside: Outside | None = None
    ) -> None:
        """Decode rows `begin` to `end` of a row group or table, and append them to the window. `where`: its name, used
        in messages. `outside`: treatment of bad numbers, and null labels are NaN; None: raise ValueError."""
        to = self.count - begin
        self._each_bank(lambda bank: bank.append(to, where, chunks, begin, end, outside))
        if self._masked and self._masked[0].name in chunks:
            # Labels come first among the floats.
            labels_TN = self._floats.decoded_CN[: len(self._masked), to + begin : to + end]
            mask_labels(labels_TN, self._masked, where, begin, nulls=outside is not None)
        for bags, column in zip(self.bags, self._multi, strict=False):
            for _, array, dictionary in _pieces(chunks[column.name], begin, end):
                fill_bags(array, column, dictionary, bags)
        self.histories.append(where, {name: _pieces(chunks[name], begin, end) for name in self.histories.names})
        self.count += end - begin

    def shuffle(self, order: I64) -> None:
        """Permute the examples after all are appended: example i becomes the one appended at index order[i]."""
        self._each_bank(lambda bank: bank.shuffle(order))
        self.order = order

    def _each_bank(self, work: Callable[[Bank], None]) -> None:
        def some(begin: int, end: int) -> None:
            for bank in self._banks[begin:end]:
                work(bank)

        self._threads.split(len(self._banks), some, minimum=1)


def _fill(
    array: pa.Array, column: InputColumn, dictionary: U64 | None, where: str, first_row: int, out: Any,
    outside: Outside | None,
) -> None:  # fmt: skip
    if column.has_keys:
        fill_keys(array, column, dictionary, out)
    else:
        fill_floats(array, column, where, first_row, out, outside)


def _pieces(chunks: list[Chunk], begin: int, end: int) -> Iterator[tuple[int, pa.Array, U64 | None]]:
    """Rows `begin` to `end` of a column, chunk by chunk: number of the first row, the rows, and the keys of their
    dictionary."""
    for chunk in chunks:
        first = max(begin, chunk.begin)
        array = chunk.array.slice(first - chunk.begin, max(0, end - first))
        if len(array):
            yield first, array, chunk.dictionary
