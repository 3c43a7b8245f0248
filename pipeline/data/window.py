"""The window of examples that are shuffled together, decoded, column by column."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipeline.data.bags import Bags
from pipeline.data.decode import fill_bags, fill_floats, fill_keys
from pipeline.data.files import Column
from pipeline.data.groups import Chunk, RowGroup
from pipeline.kernels import assemble
from pipeline.memory import aligned_empty
from pipeline.records import F32, I64, U64


class Window:
    """Arrays for `size` examples, used again for every window."""

    def __init__(self, columns: list[Column], kinds: dict[str, str], size: int) -> None:
        self.size = size
        self._floats = [c for c in columns if not c.is_category]
        self._single = [c for c in columns if c.is_category and not c.is_multi(kinds)]
        self._multi = [c for c in columns if c.is_category and c.is_multi(kinds)]
        # One row more than there are columns: decoding fills all rows but the first, `shuffle` permutes each into
        # the row before it.
        self._floats_CN: F32 = aligned_empty((len(self._floats) + 1, size), "float32")
        self._keys_SN: U64 = aligned_empty((len(self._single) + 1, size), "uint64")
        self.bags = tuple(Bags() for _ in self._multi)
        """In the order of the files; `order` leads to them."""
        self.order: I64 = aligned_empty(0, "int64")
        """Place in the files' order of the window's first, second, ... example."""
        self.count = 0

    @property
    def floats_CN(self) -> F32:
        """Labels, weight and numbers, one row a column, shuffled."""
        return self._floats_CN[:-1]

    @property
    def keys_SN(self) -> U64:
        """Keys of the single-valued fields, one row a field, shuffled."""
        return self._keys_SN[:-1]

    def clear(self) -> None:
        self.count = 0
        for bags in self.bags:
            bags.clear()

    def append(self, group: RowGroup, chunks: dict[str, list[Chunk]], begin: int, end: int) -> None:
        """Decodes rows `begin` to `end` of a row group behind what the window holds."""
        to = self.count - begin
        for out, column in zip(self._floats_CN[1:], self._floats, strict=True):
            for row, array, _ in _pieces(chunks[column.name], begin, end):
                fill_floats(array, column, str(group), row, out[to + row : to + row + len(array)])
        for keys, column in zip(self._keys_SN[1:], self._single, strict=True):
            for row, array, dictionary in _pieces(chunks[column.name], begin, end):
                fill_keys(array, column, dictionary, keys[to + row : to + row + len(array)])
        for bags, column in zip(self.bags, self._multi, strict=True):
            for _, array, dictionary in _pieces(chunks[column.name], begin, end):
                fill_bags(array, column, dictionary, bags)
        self.count += end - begin

    def shuffle(self, order: I64) -> None:
        """Puts the examples, all appended, into their order; example i will be the one appended as order[i]."""
        assemble.permute_columns(self._floats_CN, order)
        assemble.permute_columns(self._keys_SN, order)
        self.order = order


def _pieces(chunks: list[Chunk], begin: int, end: int) -> Iterator[tuple[int, pa.Array, U64 | None]]:
    """Rows `begin` to `end` of a column: first row, the rows, and the keys of their dictionary."""
    for chunk in chunks:
        first = max(begin, chunk.begin)
        array = chunk.array.slice(first - chunk.begin, max(0, end - first))
        if len(array):
            yield first, array, chunk.dictionary
