"""Replacement of the keys of a table's rare values by the key that they share."""

from __future__ import annotations

import numpy as np

from pipeline.files.types import NOTHING
from pipeline.kernels.key_set import fill_set, replace_keys, set_size
from pipeline.records import U64


class RareKeys:
    """A set of keys: either of the values that keep their keys, or of those that do not."""

    def __init__(self, keys_M: U64, kind: str, is_of_kept: bool, shared: np.uint64, nulls: bool) -> None:
        """`keys_M`: distinct keys of values of this `kind` (see `files.types.kind_of`). `is_of_kept`: True if all other
        keys become `shared`, False if these do. `nulls`: True if a missing value also has the shared key."""
        self._table_E = np.empty(set_size(len(keys_M)), np.uint64)
        fill_set(keys_M, self._table_E)
        self._kind, self._is_of_kept, self.shared, self.nulls = kind, is_of_kept, shared, nulls

    def apply(self, keys_N: U64, kind: str, what: str) -> None:
        """Replace the keys [N] of rare values. Raises ValueError, with `what` in its message, if values of this kind
        were not counted."""
        if kind != self._kind and self._kind != NOTHING:
            raise ValueError(
                f"{what}: its values are {kind}, but its file of counts has {self._kind}; count them again"
            )
        replace_keys(keys_N, self._table_E, not self._is_of_kept, self.shared)
