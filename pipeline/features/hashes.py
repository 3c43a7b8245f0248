"""Hashes of values of any column that can be a category, without the columns of a workflow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.files.buffers import numeric_values, texts, validity
from pipeline.kernels import assemble, hashing
from pipeline.records import U64


def hashes_of(array: pa.Array, space: str) -> U64:
    """[N] hashes of integers, booleans, texts, or a dictionary of those. Equal values have equal hashes, whatever their
    type; null has a separate one. `space`: name of a namespace of hashes."""
    missing = hashing.missing_key(space)
    if pa.types.is_null(array.type):
        return np.full(len(array), missing, np.uint64)
    out: U64 = np.empty(len(array), np.uint64)
    if pa.types.is_dictionary(array.type):
        indices, bits, at = numeric_values(array.indices)
        assemble.take_keys(indices, bits, at, hashes_of(array.dictionary, space), missing, out)
        return out
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    salt = hashing.table_salt(space)
    if pa.types.is_integer(array.type):
        values, bits, at = numeric_values(array)
        hashing.hash_integers(values, salt, out)
    else:
        bits, at = validity(array)
        hashing.hash_strings(*texts(array), salt, out)
    if len(bits):
        assemble.mark_missing(bits, at, missing, out)
    return out
