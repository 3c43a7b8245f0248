"""The record of a row: W words of 32 bits, always moved whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.records import U32, U64

KEY_WORDS = 2
WEIGHTS_AT = 2


@dataclass(frozen=True, slots=True)
class RowLayout:
    """key (2 words) | weights | m | v | last step | count | tag; weights, m and v of `num_weights` words. The tag is
    right in the log alone."""

    embedding_dim: int
    first_order: bool

    @property
    def num_weights(self) -> int:
        return self.embedding_dim + self.first_order

    @property
    def tag_at(self) -> int:
        """Word of the tag, the last one; what stands before it is the row proper."""
        return KEY_WORDS + 3 * self.num_weights + 2

    @property
    def num_words(self) -> int:
        return self.tag_at + 1

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_words

    @classmethod
    def of(cls, described: dict[str, Any]) -> RowLayout:
        """The layout that `describe` described."""
        begin, past = described["embedding"]
        return cls(past - begin, described["first_order"][0] != described["first_order"][1])

    def describe(self) -> dict[str, Any]:
        """Attributes of the log: word offsets, so that a reader needs nothing but the array."""
        c = self.num_weights
        return {
            "key": [0, 2],
            "embedding": [WEIGHTS_AT, WEIGHTS_AT + self.embedding_dim],
            "first_order": [WEIGHTS_AT + self.embedding_dim, WEIGHTS_AT + c],
            "adam_m": [WEIGHTS_AT + c, WEIGHTS_AT + 2 * c],
            "adam_v": [WEIGHTS_AT + 2 * c, WEIGHTS_AT + 3 * c],
            "last_step": WEIGHTS_AT + 3 * c,
            "count": WEIGHTS_AT + 3 * c + 1,
            "tag": self.tag_at,
        }


def row_keys(rows_UW: U32) -> U64:
    """The keys that rows carry, as a fresh array."""
    return np.ascontiguousarray(rows_UW[:, :KEY_WORDS]).view(np.uint64).reshape(-1)
