"""Values that are too rare to get individual rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.features.feature import Feature, Name

if TYPE_CHECKING:
    from pipeline.features.rare_keys import RareKeys
    from pipeline.features.side_files import SideFile

COLUMNS = b"pipeline.columns"
"""Entry in the metadata of a file of counts: the columns whose values are counted, as JSON."""
VALUE, COUNT = "value", "count"


class Rare(Feature):
    """Values of a category, or of its lists, that occur fewer than `at_least` times in the training data share one key
    per table. A file of counts, made by `pipeline prepare statistics`, tells which values these are."""

    kind: Literal["rare"] = "rare"
    side_field: ClassVar[str] = "counts"
    column: Name
    """A column in `data.categories`."""
    at_least: Annotated[int, Field(ge=2)]
    counts: Name
    """Parquet file, relative to `data.root`, with the columns value and count."""
    nulls: bool = False
    """True if null also has the shared key; False if it has a separate one."""
    unseen: bool = True
    """True if values that are missing from the file also have the shared key."""

    def keys(self, table: str, side: SideFile) -> RareKeys:
        """Return the keys of the rare values, or of the others. `table`: name of the category's table. Raises
        ValueError if the file has counts of other columns."""
        found: RareKeys = _keys(self, table, side)
        return found


@lru_cache(maxsize=256)
def _keys(rare: Rare, table: str, side: SideFile) -> Any:
    import json

    import numpy as np
    import pyarrow as pa

    from pipeline.features.hashes import hashes_of
    from pipeline.features.rare_keys import RareKeys
    from pipeline.features.side_files import read_columns
    from pipeline.files.types import kind_of
    from pipeline.kernels import hashing

    counts = read_columns(side, (VALUE, COUNT))
    of = json.loads((counts.schema.metadata or {}).get(COLUMNS, b"[]"))
    if rare.column not in of:
        what = f"those of {', '.join(map(repr, of))}" if of else "not of the form that `pipeline prepare` makes"
        raise ValueError(
            f"{side}: its counts are {what}, expected those of {rare.column!r}; name that column's file in "
            "Rare.counts, or make it by `pipeline prepare statistics`"
        )
    is_chosen = np.asarray(counts.column(COUNT)) >= rare.at_least
    chosen = counts.column(VALUE).filter(pa.array(is_chosen if rare.unseen else ~is_chosen)).combine_chunks()
    kind = kind_of(chosen.type) or ""
    return RareKeys(hashes_of(chosen, table), kind, rare.unseen, hashing.shared_key(table), rare.nulls)
