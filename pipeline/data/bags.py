"""Bags of keys or numbers, concatenated in memory that is reused and only grows."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike, NDArray

from pipeline.machine.limits import aligned_empty
from pipeline.records import I64


class Bags:
    """Growing list of `count` bags; bag i is keys[offsets[i] : offsets[i + 1]]."""

    def __init__(self, dtype: DTypeLike = "uint64") -> None:
        """`dtype`: dtype of the keys or numbers."""
        self.offsets: I64 = aligned_empty(1, "int64")
        self.keys: Any = aligned_empty(0, dtype)
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.offsets[0] = 0

    @property
    def num_keys(self) -> int:
        return int(self.offsets[self.count])

    def room(self, num_bags: int, num_keys: int) -> tuple[Any, I64]:
        """Memory to append to: the keys, and the [num_bags + 1] offsets, the first of which is already set.

        The caller fills in both, and then increases `count` by the number of bags added.
        """
        begin, end = self.num_keys, self.num_keys + num_keys
        self.offsets = _grown(self.offsets, self.count + 1, self.count + num_bags + 1)
        self.keys = _grown(self.keys, begin, end)
        return self.keys[begin:end], self.offsets[self.count : self.count + num_bags + 1]


def _grown(array: NDArray[Any], used: int, needed: int) -> NDArray[Any]:
    if needed <= len(array):
        return array
    # An eighth more than needed: list lengths vary, and growing costs a copy.
    grown = aligned_empty(needed + needed // 8, array.dtype)
    grown[:used] = array[:used]
    return grown
