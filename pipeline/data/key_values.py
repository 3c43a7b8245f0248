"""Original values of a column's keys, recovered from the files of a split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.data.decode import keys_of
from pipeline.data.files import InputColumn, columns_of
from pipeline.data.identity import Begun
from pipeline.data.plain import plain
from pipeline.data.split_files import files_of_splits
from pipeline.features.hashes import missing_of
from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.spans.passes import SPAN
from pipeline.workflow import Data

ROWS_AT_ONCE = 1 << 16
RARE = "(rare values)"
"""Name of the values that share a key (see `pipeline.features.settings.Rare`)."""


class KeyValues:
    """Cached values of keys in columns of `metrics.slices`. Reads the column of a split up to the last requested value,
    and nothing if all are known."""

    def __init__(self, data: Data, slices: Sequence[str], begun: Begun) -> None:
        """`begun`: the files that the run reads (see `files_of_splits`)."""
        self._data, self._begun = data, begun
        self._columns = {c.name: c for c in columns_of(data, None, slices) if c.is_group}
        self._known: dict[str, dict[int, str | None]] = {name: {} for name in slices}

    def of(self, split: str, column: str, keys: Sequence[int]) -> dict[int, str | None]:
        """Value of each key as text; None for a null. Keys that occur in no row are omitted."""
        known = self._known[column]
        if set(keys) - known.keys():
            for file in files_of_splits(self._data, self._begun)["train" if split == SPAN else split]:
                self._look(file, self._columns[column], set(keys) - known.keys())
        return {key: known[key] for key in keys if key in known}

    def _look(self, file: DataFile, column: InputColumn, wanted: set[int]) -> None:
        known = self._known[column.name]
        known |= {int(missing_of(column.name)): None} if int(missing_of(column.name)) in wanted else {}
        known |= {int(column.rare.shared): RARE} if column.rare else {}
        with open_file(file) as source:
            is_there = column.name in source.schema_arrow.names
            batches = source.iter_batches(ROWS_AT_ONCE, columns=[column.name], use_threads=False) if is_there else ()
            for batch in batches:
                if wanted <= known.keys():
                    return
                values = pa.chunked_array([batch.column(column.name)])
                array = plain(values, column, None, str(file)).combine_chunks()
                keys_N = keys_of(array, column)
                for key in wanted - known.keys():
                    if len(at := np.flatnonzero(keys_N == np.uint64(key))):
                        value = array[int(at[0])].as_py()
                        known[key] = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
