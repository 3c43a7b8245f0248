"""Pairs of values, and longer tuples, as keys."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.features.hashes import hashes_of
from pipeline.features.settings import Cross
from pipeline.features.side_files import SideFile
from pipeline.features.values import expect
from pipeline.kernels import hashing

SPACE = "cross"
"""Namespace for hashes of the individual values."""


def types(cross: Cross, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
    for name, kind in zip(cross.columns, found, strict=True):
        if pa.types.is_floating(kind):
            raise ValueError(f"column {name!r} has type {kind}; turn it into keys first, with a Bucket")
        expect(name, kind, "integers", "numbers", "text")
    return [pa.uint64()]


def compute(cross: Cross, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
    salt = hashing.table_salt(SPACE)
    crossed_N = hashes_of(given[0], SPACE)
    for array in given[1:]:
        # A sum does not depend on the order of its terms; hashing one term first makes the order of the columns matter.
        hashing.hash_integers(crossed_N, salt, crossed_N)
        hashing.hash_integers(crossed_N + hashes_of(array, SPACE), salt, crossed_N)
    return [pa.array(crossed_N)]
