"""Values too rare for their own row, and the key that they share within a table."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.features.hashes import hashes_of
from pipeline.features.settings import Rare
from pipeline.features.side_files import COLUMNS, COUNT, VALUE, SideFile, read_columns
from pipeline.files.types import NOTHING, kind_of
from pipeline.kernels import hashing
from pipeline.kernels.key_table import fill_set, replace_keys, set_size
from pipeline.records import U64
from pipeline.settings import read_json


class RareKeys:
    """Set of keys: those of the values that keep their own key or, if uncounted values also keep theirs, of those that
    do not."""

    def __init__(self, rare: Rare, table: str, side: SideFile) -> None:
        """`table`: name of the category's table. Raises ValueError if the file contains counts for another column."""
        counts = read_columns(side, (VALUE, COUNT))
        of = _counted_columns(counts)
        if rare.column not in of:
            what = f"those of {', '.join(map(repr, of))}" if of else "not of the form that `pipeline prepare` makes"
            raise ValueError(
                f"{side}: its counts are {what}, expected those of {rare.column!r}; name that column's file in "
                "Rare.counts, or make it by `pipeline prepare statistics`"
            )
        is_chosen = np.asarray(counts.column(COUNT)) >= rare.at_least
        chosen = counts.column(VALUE).filter(pa.array(is_chosen if rare.unseen else ~is_chosen)).combine_chunks()
        self._kind, self._is_of_kept = kind_of(chosen.type) or "", rare.unseen
        self.shared, self.nulls = hashing.shared_key(table), rare.nulls
        """Key of the rare values, and True if a missing value also gets it."""
        self._table_E = np.empty(set_size(len(chosen)), np.uint64)
        fill_set(hashes_of(chosen, table), self._table_E)

    def apply(self, keys_N: U64, kind: str, what: str) -> None:
        """Replace the keys [N] of rare values. Raises ValueError, with `what` in its message, if values of this kind
        were not counted."""
        if kind != self._kind and self._kind != NOTHING:
            raise ValueError(
                f"{what}: its values are {kind}, but its file of counts has {self._kind}; count them again"
            )
        replace_keys(keys_N, self._table_E, not self._is_of_kept, self.shared)


def changed_keys(rare: Rare, before: SideFile, now: SideFile) -> pa.Array:
    """Values counted in the file `before` that are rare in one of the files and not in the other. Raises ValueError if
    the type of the values has changed."""
    counts, counts_now = (read_columns(side, (VALUE, COUNT)) for side in (before, now))
    values, values_now = (table.column(VALUE).combine_chunks() for table in (counts, counts_now))
    if NOTHING not in (was := kind_of(values.type), found := kind_of(values_now.type)) and was != found:
        raise ValueError(f"{now}: its values are {found}, and were {was}; count them as before")
    at = pc.index_in(values, values_now.cast(values.type))
    own = pc.greater_equal(counts.column(COUNT), rare.at_least)
    own_now = pc.fill_null(pc.greater_equal(counts_now.column(COUNT), rare.at_least).take(at), not rare.unseen)
    return values.filter(pc.not_equal(own, own_now))


def _counted_columns(counts: pa.Table) -> list[str]:
    """Columns whose values were counted, from the metadata of a file of counts; none if the file has another form."""
    try:
        of = read_json(list[str], (counts.schema.metadata or {}).get(COLUMNS, b"[]"))
    except ValueError:
        return []
    values, nums = counts.column(VALUE), counts.column(COUNT)
    fits = kind_of(values.type) in ("integers", "text", NOTHING) and pa.types.is_integer(nums.type)
    return of if fits and not values.null_count and not nums.null_count else []


@lru_cache(maxsize=256)
def rare_keys(rare: Rare, table: str, side: SideFile) -> RareKeys:
    """Cached `RareKeys`, shared by runs and requests."""
    return RareKeys(rare, table, side)
