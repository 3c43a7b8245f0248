"""A range of a vocabulary in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.records import I32, I64, U64


class Partition(NamedTuple):
    """Values with their keys, in the order of (key, value); their ids are `first_id`, `first_id` + 1, ..."""

    values_U: pa.Array
    keys_U: U64
    first_id: int

    @property
    def nbytes(self) -> int:
        return int(self.values_U.nbytes + self.keys_U.nbytes)

    def ids_of(self, values_N: pa.Array, keys_N: U64) -> I32:
        """[N] ids of values, which are sorted by their keys; 0 for a value that is not in the partition."""
        ids_N = np.zeros(len(keys_N), np.int32)
        at_N = np.searchsorted(self.keys_U, keys_N)
        left = np.arange(len(keys_N))
        # One pass, or more if values share a key.
        while len(left := left[self._has_key(at_N[left], keys_N[left])]):
            same = pc.equal(self.values_U.take(pa.array(at_N[left])), values_N.take(pa.array(left)))
            is_same = same.fill_null(False).to_numpy(zero_copy_only=False)
            ids_N[left[is_same]] = at_N[left[is_same]] + self.first_id
            left = left[~is_same]
            at_N[left] += 1
        return ids_N

    def _has_key(self, at_N: I64, keys_N: U64) -> NDArray[np.bool_]:
        """[N] True if the key is at the place, which may be past the end."""
        inside = at_N < len(self.keys_U)
        inside[inside] = self.keys_U[at_N[inside]] == keys_N[inside]
        return inside
