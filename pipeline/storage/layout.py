"""The record of a row: W words of 32 bits, always moved whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.records import U32, U64

KEY_WORDS = 2
MAX_WIDTH = 1 << 20
"""The widest embedding that is read back: no file makes anybody allocate more for a row."""
WEIGHTS_AT = 2
STATE = {
    "sgd": (),
    "adagrad": ("adagrad_sum",),
    "rowwise_adagrad": ("rowwise_adagrad_sum",),
    "adam": ("adam_m", "adam_v"),
    "ftrl": ("ftrl_z", "ftrl_n"),
}
"""Parts of a row that belong to its optimizer: each of one word a weight, or, row-wise, of one for the embedding and
one for the first-order weight."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """key (2 words) | weights | optimizer state | last step | count | tag. The tag is right in the log alone."""

    embedding_dim: int
    first_order: bool
    optimizer: str = "adam"
    """A kind of `pipeline.optimizer`."""

    @property
    def num_weights(self) -> int:
        return self.embedding_dim + self.first_order

    @property
    def last_step_at(self) -> int:
        parts = len(STATE[self.optimizer])
        width = self.num_weights
        if self.optimizer == "rowwise_adagrad":
            width = (self.embedding_dim > 0) + self.first_order
        return WEIGHTS_AT + self.num_weights + parts * width

    @property
    def tag_at(self) -> int:
        """Word of the tag, the last one; what stands before it is the row proper."""
        return self.last_step_at + 2

    @property
    def num_words(self) -> int:
        return self.tag_at + 1

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_words

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> RowLayout:
        """The layout that `describe` described. ValueError: it was none."""
        try:
            begin, end = described["embedding"]
            first_order = bool(described["first_order"][0] != described["first_order"][1])
            optimizer = next(kind for kind in reversed(STATE) if all(name in described for name in STATE[kind]))
            layout = cls(end - begin, first_order, optimizer)
            if 0 <= layout.embedding_dim <= MAX_WIDTH and layout.describe() == described:
                return layout
        except (KeyError, TypeError, ValueError, IndexError):
            pass
        raise ValueError(f"row is no layout of rows: {str(described)[:200]}")

    def describe(self) -> dict[str, Any]:
        """Attributes of the log: word offsets, so that a reader needs nothing but the array."""
        state_at = WEIGHTS_AT + self.num_weights
        names = STATE[self.optimizer]
        width = (self.last_step_at - state_at) // max(1, len(names))
        ends = [state_at + part * width for part in range(len(names) + 1)]
        return {
            "key": [0, 2],
            "embedding": [WEIGHTS_AT, WEIGHTS_AT + self.embedding_dim],
            "first_order": [WEIGHTS_AT + self.embedding_dim, state_at],
            **{name: list(bounds) for name, bounds in zip(names, pairwise(ends), strict=True)},
            "last_step": self.last_step_at,
            "count": self.last_step_at + 1,
            "tag": self.tag_at,
        }


def row_keys(rows_UW: U32) -> U64:
    """The keys that rows carry, as a fresh array."""
    return np.ascontiguousarray(rows_UW[:, :KEY_WORDS]).view(np.uint64).reshape(-1)
