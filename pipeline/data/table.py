"""Arrow tables in memory as batches of examples: the same columns and conversions as for Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from pipeline.data.batches import BatchWriter, widths_of
from pipeline.data.buffer import ReadBuffer
from pipeline.data.files import InputColumn, SchemaCheck, derived_of, plain
from pipeline.data.groups import Chunk, chunks_of
from pipeline.data.outside import Outside
from pipeline.data.window import Window
from pipeline.files.description import Description
from pipeline.files.flat import Place, at_place, places
from pipeline.files.types import in_memory_type, plain_type, to_plain
from pipeline.machine.threads import Threads
from pipeline.records import Block, Examples, FieldLayout
from pipeline.workflow import Data


class TableReader:
    """Reader of tables. Not thread-safe: its buffers are reused for each batch."""

    def __init__(
        self, columns: list[InputColumn], kinds: Mapping[str, str], layout: FieldLayout,
        data: Data | None = None, description: Description | None = None,
    ) -> None:  # fmt: skip
        """`columns`: all columns to read, in the order of `columns_of`. `kinds`: kind of each column of keys (see
        `SchemaCheck`). `layout`: layout of their categorical fields. `data`: has the features; None: there are none.
        `description`: that of the training data."""
        self._derived = derived_of(data, description) if data else None
        self._canonical = description is None or description.canonical
        self._columns, self._kinds = columns, dict(kinds)
        self._widths = widths_of(columns, layout)
        self._threads = Threads(1, "read table")
        self._writer = BatchWriter(self._widths)
        self._buffer = ReadBuffer(0)
        self._checked: pa.Schema | None = None
        """Schema of the last table, kept because a server's requests are alike and checking 26 columns takes 0.2 ms."""
        self._places: dict[str, Place] = {}
        """Place of each column in tables of that schema."""
        self._window = Window(columns, self._kinds, 0, self._threads)

    def batches(
        self, table: pa.Table, batch_size: int, outside: Outside, name: str = "the table"
    ) -> Iterator[Examples]:
        """Yield the table's rows in blocks of one batch, each valid until the next one. `outside`: treatment of bad
        numbers. `name`: name of the table in messages.

        Raises ValueError, with the column, if a column is missing, has the wrong type or contains bad values.
        """
        if self._checked is None or not table.schema.equals(self._checked):
            found = places(table.schema)
            types = [plain_type(field.type, self._canonical) for _, _, field in found]
            flat = pa.schema(
                [f.with_name(name).with_type(kind) for (name, _, f), kind in zip(found, types, strict=True)]
            )
            if self._derived:
                for column in self._columns:
                    if lacking := self._derived.missing(column.name, flat.names):
                        raise ValueError(
                            f"{name}: column {lacking[0]!r} is missing, of which {column.name!r} is made; correct the "
                            f"table, which has: {', '.join(flat.names)}"
                        )
                flat = self._derived.schema(flat, name)
            SchemaCheck(self._columns, self._kinds).check(name, flat)
            self._checked, self._places = table.schema, {name: place for name, place, _ in found}
        names = [column.name for column in self._columns]
        if self._derived:
            found_in = self._derived.columns(names, lambda given: self._given(table, given, name), name)
        else:
            found_in = {given: self._given(table, given, name) for given in names}
        chunks = {c.name: chunks_of(self._plain(found_in[c.name], c, name), c) for c in self._columns}
        if self._window.size < min(batch_size, table.num_rows):
            self._window = Window(self._columns, self._kinds, min(batch_size, table.num_rows), self._threads)
        for begin in range(0, table.num_rows, batch_size):
            yield self._read(chunks, begin, min(begin + batch_size, table.num_rows), outside, name)

    def _given(self, table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
        place = self._places[name]
        column = at_place(table.column(place[0]), place)
        into = in_memory_type(column, self._canonical)
        return to_plain(column, into, f"{where}: column {name!r}", self._canonical)

    def _plain(self, column: pa.ChunkedArray, spec: InputColumn, where: str) -> pa.ChunkedArray:
        return plain(column, spec, self._kinds.get(spec.name) if spec.has_keys else None, where)

    def _read(self, chunks: Mapping[str, list[Chunk]], begin: int, end: int, outside: Outside, name: str) -> Examples:
        size = end - begin
        self._window.clear()
        self._window.append(name, dict(chunks), begin, end, outside)
        self._window.shuffle(np.arange(size, dtype=np.int64))
        bags_of = (*self._window.bags, *self._window.histories.numbers)
        num_values = self._widths.num_single * size + sum(bags.num_keys for bags in bags_of)
        needed = self._widths.array_bytes([size]) + 8 * num_values
        if needed > self._buffer.limit_bytes:
            self._buffer = ReadBuffer(needed + needed // 4)
        block = Block(
            number=0, split="test", epoch=0, first_batch=0, num_batches=1, first_example=0, num_examples=size,
            batch_size=size, first_step=0, closes_split=False,
        )  # fmt: skip
        examples = self._buffer.begin(block, self._widths)
        examples.batch_starts[0] = 0
        self._writer.begin(examples, 0)
        self._writer.add(self._window, 0, size, 0)
        self._writer.end()
        return self._writer.finish()

    def close(self) -> None:
        self._threads.close()
