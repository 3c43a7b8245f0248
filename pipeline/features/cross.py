"""Pairs of values, and longer tuples, as keys."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.features.hashes import hashes_of
from pipeline.features.settings import Cross
from pipeline.features.side_files import SideFile, expect
from pipeline.kernels import hashing
from pipeline.records import U64

SPACE = "cross"
"""Namespace for hashes of the individual values."""


def types(cross: Cross, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
    for name, kind in zip(cross.columns, found, strict=True):
        expect(name, kind, "integers", "numbers", "text")
    return [pa.uint64()]


def compute(cross: Cross, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
    salt = hashing.table_salt(SPACE)
    crossed_N, *others = (_hashes(array, name) for array, name in zip(given, cross.columns, strict=True))
    for hashes_N in others:
        # A sum does not depend on the order of its terms; hashing one term first makes the order of the columns matter.
        hashing.hash_integers(crossed_N, salt, crossed_N)
        hashing.hash_integers(crossed_N + hashes_N, salt, crossed_N)
    return [pa.array(crossed_N)]


def _hashes(array: pa.Array, name: str) -> U64:
    try:
        return hashes_of(array, SPACE, f"column {name!r}")
    except ValueError as error:
        raise ValueError(f"{error}, or make keys of it with a Bucket") from None
