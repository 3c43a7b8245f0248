"""The description of columns: the type of each, found once, when a run begins, and kept in its commits and servables.
Later files, tables and requests are read by it, and compared with it, not with each other."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pipeline.files.types import NOTHING, has_no_values


class Description:
    """Types of columns. A type that is not known is taken from the first file with values."""

    def __init__(
        self, *known: Mapping[str, str], canonical: bool = True, years: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """`known`: names of Arrow types, by column; the first with values holds. `canonical`: see `DataFile`. `years`:
        of a trained model, first and last year of the columns of times, where known; other times are then read as in
        training. None: the data of a run."""
        self.canonical, self.years = canonical, years
        self.types = {n: kind for of in reversed(known) for n, kind in of.items() if NOTHING not in kind_named(kind)}
        self._first: dict[str, str] = {}

    def first(self, name: str) -> str:
        """The file from which the type of a column was taken."""
        return self._first.get(name, "the training data")

    def take(self, schema: pa.Schema, where: object) -> None:
        """Take the types that are not known from the flat columns of a file or table, `where`."""
        new = {one.name: str(one.type) for one in schema if one.name not in self.types and not has_no_values(one.type)}
        self.types |= new
        self._first |= dict.fromkeys(new, str(where))

    def difference(self, name: str, found: pa.DataType) -> str:
        """How a column differs from what is known of it, as the end of a sentence; empty if it does not."""
        kind, was = (kind_named(one) for one in (str(found), self.types.get(name, str(found))))
        return "" if has_no_values(found) or kind == was else f"holds {kind}, expected {was} as in {self.first(name)}"


def kind_named(name: str) -> str:
    """Kind of the keys of a column (see `files.types.key_kind`), from the name of its Arrow type; for times "dates",
    "times with a zone" or "times without a zone"."""
    inner = inner_of_name(name)
    if inner.startswith(("timestamp", "date")):
        return "dates" if inner.startswith("date") else f"times {'with' if ', tz=' in inner else 'without'} a zone"
    kind = "text" if "string" in inner or "binary" in inner else NOTHING if inner.startswith("null") else "integers"
    return f"lists of {kind}" if name.startswith(("list<", "large_list<")) else kind


def inner_of_name(name: str) -> str:
    """Text that starts with the type of a column's values, from the name of its Arrow type."""
    # The element of a list has a name, which may be arbitrary text.
    _, is_dictionary, values = name.partition("dictionary<values=")
    return values if is_dictionary else name.rpartition(": ")[2]
