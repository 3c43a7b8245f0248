"""Attributes from a side table, such as those of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.features.feature import Name, SeveralColumns, expect

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.features.side_files import SideFile

SPACE = "lookup"
"""Namespace of the hashes of keys."""


class Lookup(SeveralColumns):
    """Columns of a Parquet file, joined by key: from the row whose `key` equals the value of `column`. Null, and values
    that the file does not contain, give null. The file is held in memory, and each key must occur in it once."""

    kind: Literal["lookup"] = "lookup"
    side_field: ClassVar[str] = "file"
    hashes: ClassVar[bool] = True
    file: Name
    """Parquet file, relative to `data.root`. Its checksum is part of the run, and a servable contains a copy."""
    key: Name
    """The file's key column: integers or text, as in `column`."""
    take: Annotated[dict[Name, Name], Field(min_length=1)]
    """Columns of the file, each with the name of the column to make from it."""

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        from pipeline.files.types import is_list, key_kind, value_of

        _, attributes, kind = _side_table(side, self.key, tuple(self.take))
        expect(self.column, found[0], *("integers", "numbers") if kind == "integers" else ("text",))
        if str(value_of(found[0])) in ("float", "double", "halffloat"):
            raise ValueError(f"column {self.column!r} has type {found[0]}, expected {key_kind(found[0])} as in {side}")
        if lists := [name for name in self.take if is_list(attributes[name].type)]:
            raise ValueError(f"{side}: column {lists[0]!r} has lists, but a lookup makes only columns of single values")
        return [attributes[name].type for name in self.take]

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        import numpy as np
        import pyarrow as pa

        from pipeline.features.hashes import hashes_of

        keys_M, attributes, _ = _side_table(side, self.key, tuple(self.take))
        keys_N = hashes_of(given[0], SPACE)
        at_N = np.searchsorted(keys_M, keys_N).clip(max=max(0, len(keys_M) - 1))
        is_found_N = keys_M[at_N] == keys_N if len(keys_M) else np.zeros(len(keys_N), np.bool_)
        places_N = pa.array(at_N, mask=~is_found_N)
        return [attributes[name].take(places_N) for name in self.take]


@lru_cache(maxsize=64)
def _side_table(side: SideFile, key: str, names: tuple[str, ...]) -> tuple[Any, Mapping[str, pa.Array], str | None]:
    """Return the sorted hashes of a file's keys, its other columns in that order, and the kind of the keys. Raises
    ValueError if a key is null or occurs twice."""
    import numpy as np
    import pyarrow as pa

    from pipeline.features.hashes import hashes_of
    from pipeline.features.side_files import read_columns
    from pipeline.files.types import kind_of

    table = read_columns(side, (key, *names))
    keys, kind = table.column(key).combine_chunks(), kind_of(table.column(key).type)
    if kind not in ("integers", "text"):
        raise ValueError(f"{side}: column {key!r} has type {keys.type}, expected integers or text")
    if keys.null_count:
        raise ValueError(f"{side}: column {key!r} has {keys.null_count:,} nulls; leave these rows out")
    keys_M = hashes_of(keys, SPACE)
    order_M = np.argsort(keys_M, kind="stable")
    keys_M = keys_M[order_M]
    if len(twice := np.flatnonzero(keys_M[1:] == keys_M[:-1])):
        value = keys[int(order_M[twice[0]])].as_py()
        raise ValueError(
            f"{side}: column {key!r} has {value!r} in more than one row, as {len(twice):,} rows repeat a key; leave "
            "one row of each"
        )
    return keys_M, {name: table.column(name).combine_chunks().take(pa.array(order_M)) for name in names}, kind
