"""Layout of a row: W words of 32 bits, always moved as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.records import U32, U64

KEY_WORDS = 2
MAX_WIDTH = 1 << 20
"""Widest embedding accepted from a file, so that no file can cause a larger allocation per row."""
WEIGHTS_AT = 2
STATE = {
    "sgd": (),
    "adagrad": ("adagrad_sum",),
    "rowwise_adagrad": ("rowwise_adagrad_sum",),
    "adam": ("adam_m", "adam_v"),
    "ftrl": ("ftrl_z", "ftrl_n"),
}
"""Optimizer state of a row, by kind of optimizer. Each part has one word per weight; a row-wise part has one word for
the embedding and one for the first-order weight."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Order of words in a row: key (2 words) | weights | optimizer state | last step | count | tag. The tag is valid
    only in the log."""

    embedding_dim: int
    first_order: bool
    optimizer: str = "adam"
    """Kind of a row optimizer in `pipeline.optimizer`."""

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
        """Word of the tag, which is the last word; the tag covers all words before it."""
        return self.last_step_at + 2

    @property
    def num_words(self) -> int:
        return self.tag_at + 1

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_words

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> RowLayout:
        """Layout with this description, the inverse of `describe`. Raises ValueError if it describes no layout."""
        try:
            begin, end = described["embedding"]
            first_order = bool(described["first_order"][0] != described["first_order"][1])
            optimizer = next(kind for kind in reversed(STATE) if all(name in described for name in STATE[kind]))
            layout = cls(end - begin, first_order, optimizer)
            if 0 <= layout.embedding_dim <= MAX_WIDTH and layout.describe() == described:
                return layout
        except (KeyError, TypeError, ValueError, IndexError):
            pass
        raise ValueError(f"row does not describe a row layout: {str(described)[:200]}")

    def describe(self) -> dict[str, Any]:
        """Attributes of the log: the word offsets of all parts, so that a reader needs nothing but the array."""
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
    """[U] the keys stored in the rows, as a new array."""
    return np.ascontiguousarray(rows_UW[:, :KEY_WORDS]).view(np.uint64).reshape(-1)
