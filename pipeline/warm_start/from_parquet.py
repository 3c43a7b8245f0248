"""Rows from vectors in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.decode import dictionary_keys, fill_keys
from pipeline.data.files import InputColumn, plain
from pipeline.errors import did_you_mean
from pipeline.files.find import DataFile, find
from pipeline.files.flat import open_file
from pipeline.files.types import is_list, key_kind, kind_of
from pipeline.records import RESERVED, U32, U64, Array
from pipeline.settings.init_from import FromParquet
from pipeline.storage.layout import WEIGHTS_AT, RowLayout
from pipeline.warm_start.from_run import check_width, empty_rows, is_text
from pipeline.workflow import Workflow

ROWS_AT_ONCE = 1 << 14


class ParquetOrigin:
    """Files with one vector per row. Methods as in `RunOrigin`. Rows are read in file order."""

    def __init__(self, given: FromParquet, workflow: Workflow, row: RowLayout, types: Mapping[str, str]) -> None:
        """`row`: row layout of the new run; `types`: Arrow types of its columns, by name. Raises ValueError if there
        are no files, or a column is missing or has another type."""
        self._given, self._row = given, row
        self._files = find(given.files, workflow.data.root, "init_from.files", "Parquet").files
        self.name = ", ".join(given.files)
        self._num_rows = self._num_null = 0
        column = next((c.name for c in workflow.data.categories if c.table_name == given.table_name), "")
        self._is_text = is_text(types[column]) if column in types else None
        """True if the table contains text, False for integers; None for keys."""
        self.max_rows = sum(self._check(file) for file in self._files)

    def _check(self, file: DataFile) -> int:
        """Number of rows in a file. Raises ValueError if its columns do not fit."""
        given = self._given
        with open_file(file) as opened:
            schema = opened.schema_arrow
            for name in filter(None, (given.vector, given.value, given.key, given.first_order)):
                if name not in schema.names:
                    raise ValueError(f"init_from: {file} has no column {name!r}{did_you_mean(name, schema.names)[1]}")
            kinds = {name: kind_of(schema.field(name).type) for name in schema.names}
            if kinds[given.vector] not in ("lists of numbers", "lists of integers"):
                raise ValueError(
                    f"init_from: column {given.vector!r} of {file} is {schema.field(given.vector).type}; expected a "
                    "list of numbers in each row"
                )
            if given.key and schema.field(given.key).type not in (pa.uint64(), pa.int64()):
                raise ValueError(
                    f"init_from: column {given.key!r} of {file} is {schema.field(given.key).type}; expected keys as "
                    "64-bit integers, as `open_run(RUN).table_batches()` yields them; for values name value= and table="
                )
            kind = key_kind(schema.field(given.value).type) if given.value else None
            if given.value and kind not in ("integers", "text"):
                raise ValueError(
                    f"init_from: column {given.value!r} of {file} is {schema.field(given.value).type}; expected the "
                    "values of a table: integers or text"
                )
            if kind and self._is_text is not None and (kind == "text") != self._is_text:
                raise ValueError(
                    f"init_from: column {given.value!r} of {file} is {kind}, and table {given.table_name!r} holds "
                    f"{'text' if self._is_text else 'integers'} in the training data, so no value would be found; "
                    "convert the column"
                )
            return int(opened.metadata.num_rows)

    def rows(self) -> Iterator[U32]:
        given = self._given
        names = [name for name in (given.value, given.key, given.vector, given.first_order) if name]
        for file in self._files:
            with open_file(file) as opened:
                first = 0
                for batch in opened.iter_batches(ROWS_AT_ONCE, columns=names, use_threads=False):
                    table = pa.table(batch).drop_null()
                    self._num_null += batch.num_rows - table.num_rows
                    self._num_rows += table.num_rows
                    where = f"{file}, rows {first} to {first + batch.num_rows - 1}"
                    if table.num_rows:
                        yield self._rows_of(table, where)
                    first += batch.num_rows

    def _rows_of(self, table: pa.Table, where: str) -> U32:
        given, row = self._given, self._row
        rows_UX = empty_rows(row, self._keys(table, where))
        weights_UC = rows_UX.view(np.float32)[:, WEIGHTS_AT : WEIGHTS_AT + row.num_weights]
        vectors = table[given.vector].combine_chunks()
        assert is_list(vectors.type)
        lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
        if len(others := lengths[lengths != row.embedding_dim]):
            check_width(f"column {given.vector!r} of {where},", int(others[0]), row)
        values = pc.cast(vectors.flatten(), pa.float32()).to_numpy(zero_copy_only=False)
        weights_UC[:, : row.embedding_dim] = values.reshape(-1, row.embedding_dim)
        if given.first_order and row.first_order:
            weights_UC[:, row.embedding_dim] = pc.cast(table[given.first_order], pa.float32()).to_numpy()
        if not np.isfinite(weights_UC).all():
            raise ValueError(f"init_from: {where} have a weight that is null or not finite; leave such rows out")
        return rows_UX

    def _keys(self, table: pa.Table, where: str) -> U64:
        given = self._given
        if given.key:
            keys_U: U64 = table[given.key].to_numpy().astype(np.uint64)
            if (keys_U == RESERVED).any():
                raise ValueError(f"init_from: {where}: {int(RESERVED)} is not the key of any value; leave that row out")
            return keys_U
        spec = InputColumn(str(given.value), "data.categories", table=str(given.table_name))
        column = plain(table[given.value], spec, None, where).combine_chunks()
        out: U64 = np.empty(len(column), np.uint64)
        fill_keys(column, spec, dictionary_keys(column, spec), out)
        return out

    def layers(self) -> Mapping[str, Array]:
        return {}

    def remarks(self) -> list[str]:
        nulls = f"; {self._num_null:,} rows with a null were left out" if self._num_null else ""
        return [f"init_from: read {self._num_rows:,} vectors of {self.name}{nulls}"]

    def close(self) -> None: ...
