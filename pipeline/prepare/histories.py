"""Histories: lists of the events of each example's user before it, as columns of the parts of the examples.

The events are stored once, sorted by user and time, in a memory-mapped file. A history is a range of events, its frame,
so memory use is limited to the lists of one part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.files.find import DataFile

PREFIX = "hist_"
ITEMS, FRAMES = "items.arrow", "frames.arrow"
"""Files with the items of the sorted events; and with `begin` and `end` of each example's history in these items, and
its PLACE, with the examples in the order of their files."""
PLACE = "\1place"
"""Column with an example's index in SPLITS by `--split last`, or LEFT_OUT. No source file has a column of this name."""
LEFT_OUT = -1


@dataclass(frozen=True)
class Histories:
    """Description of the histories, and the folder of their files while parts are made."""

    folder: Path
    examples: tuple[DataFile, ...]
    events: tuple[DataFile, ...]
    types: tuple[tuple[str, pa.DataType], ...]
    """Name and type, over all files, of the user, the time, and each item column."""
    of_examples: tuple[tuple[str, pa.DataType], ...]
    """Name and type of the user and the time in the examples."""
    where: str
    """SQL expression that is true for events; empty: for all rows."""
    starts: tuple[int, ...]
    """Number of examples before each of their files, followed by the total."""
    last: int
    """Maximum number of events in a history."""
    least: int
    """Minimum number of events of a user; the examples of other users are omitted."""
    memory: int
    """Memory for sorting events, in bytes."""
    earlier: tuple[DataFile, ...] = ()
    """Files of further events, before all others in the order of files; `where` does not concern them."""
    latest: Path | None = None
    """File to write with the last events of each user."""

    @property
    def row_bytes(self) -> int:
        """Upper bound of the size of an example's lists in bytes; a string counts as 16 bytes."""
        kinds = [kind for _, kind in self.types[2:]]
        return self.last * sum(max(1, k.bit_width // 8) if pa.types.is_primitive(k) else 16 for k in kinds)

    def with_nulls(self) -> list[str]:
        """Names of the list columns that contain null values. Valid only while parts are made."""
        items = _mapped(path := self.folder / ITEMS, path.stat().st_mtime_ns)
        return [f"{PREFIX}{name}" for (name, _), c in zip(self.types[2:], items.columns, strict=True) if c.null_count]

    def added_to(self, table: pa.Table, file: int, first_row: int) -> pa.Table:
        """Add histories and PLACE to consecutive rows of a file of examples."""
        items, frames = (_mapped(path, path.stat().st_mtime_ns) for path in (self.folder / n for n in (ITEMS, FRAMES)))
        frames = frames.slice(self.starts[file] + first_row, table.num_rows)
        begin_N, end_N = (frames.column(name).to_numpy() for name in ("begin", "end"))
        starts = np.concatenate([[0], np.cumsum(end_N - begin_N)])
        at_V = pa.array(np.repeat(begin_N - starts[:-1], end_N - begin_N) + np.arange(starts[-1]))
        for (name, kind), column in zip(self.types[2:], items.columns, strict=True):
            values = _of_type(column.take(at_V).combine_chunks(), kind)
            table = table.append_column(
                f"{PREFIX}{name}", pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
            )
        return table.append_column(PLACE, frames.column(PLACE))

    def named(self, sorted_events: pa.Table) -> pa.Table:
        """Return columns c0, c1, ... of a table of events under their names, and with their types."""
        columns = {
            name: _of_type(sorted_events.column(f"c{n}").combine_chunks(), kind)
            for n, (name, kind) in enumerate(self.types)
        }
        return pa.table(columns)


def _of_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.view(kind) if values.type != kind else values


@lru_cache(8)
def _mapped(path: Path, made_at: int) -> pa.Table:
    """Memory-map a file, once per process; `made_at` distinguishes it from an earlier file at the same path."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
