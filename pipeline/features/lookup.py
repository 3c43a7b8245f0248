"""Attributes from a side table, such as those of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pipeline.features.hashes import hashes_of
from pipeline.features.settings import Lookup
from pipeline.features.side_files import SideFile, read_columns
from pipeline.files.types import NOTHING, is_list, key_kind, kind_of, whole
from pipeline.records import U64

SPACE = "lookup"
"""Namespace for hashes of keys."""


def types(lookup: Lookup, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
    _, attributes, kind = _side_table(side, lookup.key, tuple(lookup.take))
    if key_kind(found[0]) not in (NOTHING, kind):
        raise ValueError(f"column {lookup.column!r} has type {found[0]}, expected {kind}, as {lookup.key!r} in {side}")
    if lists := [name for name in lookup.take if is_list(attributes[name].type)]:
        raise ValueError(f"{side}: column {lists[0]!r} has lists, and a lookup makes columns of single values only")
    return [attributes[name].type for name in lookup.take]


def compute(lookup: Lookup, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
    keys_N = hashes_of(given[0], SPACE, f"column {lookup.column!r}")
    return _attributes(lookup, keys_N, side)


def changed_keys(lookup: Lookup, before: SideFile, now: SideFile) -> pa.Array:
    """Keys of the file `before` that have other values in `now`, or are gone from it. Raises ValueError if a type has
    changed."""
    (_, were, kind), (_, are, kind_now) = (_side_table(side, lookup.key, tuple(lookup.take)) for side in (before, now))
    types = [(kind, kind_now), *((were[name].type, are[name].type) for name in lookup.take)]
    for name, (was, found) in zip((lookup.key, *lookup.take), types, strict=True):
        if was != found:
            raise ValueError(f"{now}: column {name!r} has type {found}, and had {was}; write it as before")
    keys = read_columns(before, (lookup.key,)).column(0).combine_chunks()
    keys = whole(keys, f"{before}") if kind_of(keys.type) == "numbers" else keys
    keys_N = hashes_of(keys, SPACE)
    differs_N = np.zeros(len(keys_N), np.bool_)
    for old, new in zip(_attributes(lookup, keys_N, before), _attributes(lookup, keys_N, now), strict=True):
        codes = pa.chunked_array([old, new]).dictionary_encode("encode").combine_chunks().indices.to_numpy()
        differs_N |= codes[: len(keys_N)] != codes[len(keys_N) :]
    return keys.filter(pa.array(differs_N))


def _attributes(lookup: Lookup, keys_N: U64, side: SideFile) -> list[pa.Array]:
    """Values of the taken columns for each hash of a key."""
    keys_M, attributes, _ = _side_table(side, lookup.key, tuple(lookup.take))
    at_N = np.searchsorted(keys_M, keys_N).clip(max=max(0, len(keys_M) - 1))
    is_found_N = keys_M[at_N] == keys_N if len(keys_M) else np.zeros(len(keys_N), np.bool_)
    places_N = pa.array(at_N, mask=~is_found_N)
    return [attributes[name].take(places_N) for name in lookup.take]


@lru_cache(maxsize=64)
def _side_table(side: SideFile, key: str, names: tuple[str, ...]) -> tuple[U64, Mapping[str, pa.Array], str | None]:
    """Return the sorted hashes of a file's keys, its other columns in that order, and the kind of the keys. Raises
    ValueError if a key is null or occurs twice."""
    table = read_columns(side, (key, *names))
    column, kind = table.column(key), key_kind(table.column(key).type)
    if kind not in ("integers", "text"):
        raise ValueError(f"{side}: column {key!r} has type {column.type}, expected integers or text")
    keys = (whole(column, f"{side}: column {key!r}") if kind_of(column.type) == "numbers" else column).combine_chunks()
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
