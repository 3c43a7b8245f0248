"""Pairs and longer tuples of values as keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.features.feature import Feature, Name, expect

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.features.side_files import SideFile

SPACE = "cross"
"""Namespace of the hashes of the single values."""


class Cross(Feature):
    """A column of 64-bit hashes of the values of two or more columns, in this order, without a vocabulary. Null is a
    value like any other. Columns of lists are rejected."""

    kind: Literal["cross"] = "cross"
    hashes: ClassVar[bool] = True
    columns: Annotated[tuple[Name, ...], Field(min_length=2)]
    name: Name

    @property
    def reads(self) -> tuple[str, ...]:
        return self.columns

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name,)

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        import pyarrow as pa

        for name, kind in zip(self.columns, found, strict=True):
            if pa.types.is_floating(kind):
                raise ValueError(f"column {name!r} has type {kind}; turn it into keys first, with a Bucket")
            expect(name, kind, "integers", "numbers", "text")
        return [pa.uint64()]

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        import pyarrow as pa

        from pipeline.features.hashes import hashes_of
        from pipeline.kernels import hashing

        salt = hashing.table_salt(SPACE)
        crossed_N = hashes_of(given[0], SPACE)
        for array in given[1:]:
            # A sum does not depend on the order of its terms; hashing in between makes the order of the columns count.
            hashing.hash_integers(crossed_N, salt, crossed_N)
            hashing.hash_integers(crossed_N + hashes_of(array, SPACE), salt, crossed_N)
        return [pa.array(crossed_N)]
