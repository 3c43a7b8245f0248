"""Hashes of the values of Arrow arrays: keys of categories, and hashes that features compare and cross."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from pipeline.files.buffers import numeric_values, texts, validity
from pipeline.files.types import kind_of, whole
from pipeline.kernels import assemble, hashing
from pipeline.records import U64


@cache
def salt_of(table: str) -> np.uint64:
    return hashing.table_salt(table)


@cache
def missing_of(field: str) -> np.uint64:
    return hashing.missing_key(field)


def hash_values(array: pa.Array, space: str, out: U64) -> str:
    """Hash integers, booleans or texts; the hash of null is arbitrary. `space`: name of the table or other namespace.
    Returns the kind of the values (see `files.types.kind_of`)."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_integer(array.type):
        values, _, _ = numeric_values(array)
        hashing.hash_integers(values, salt_of(space), out)
        return "integers"
    hashing.hash_strings(*texts(array), salt_of(space), out)
    return "text"


def hashes_of(array: pa.Array, space: str, what: str = "the column") -> U64:
    """[N] hashes of integers, whole floats, booleans, texts, or a dictionary of those. Equal values have equal hashes,
    whatever their type; null and NaN have a separate hash. Raises ValueError, which begins with `what`, if a float is
    not whole."""
    missing = missing_of(space)
    if pa.types.is_null(array.type):
        return np.full(len(array), missing, np.uint64)
    out: U64 = np.empty(len(array), np.uint64)
    if pa.types.is_dictionary(array.type):
        indices, bits, at = numeric_values(array.indices)
        assemble.take_keys(indices, bits, at, hashes_of(array.dictionary, space, what), missing, out)
        return out
    if kind_of(array.type) == "numbers":
        array = whole(pa.chunked_array([array]), what).combine_chunks()
    hash_values(array, space, out)
    bits, at = validity(array)
    if len(bits):
        assemble.mark_missing(bits, at, missing, out)
    return out
