"""Layout of a row: W words of 32 bits, always moved as a whole.

A row is wide if all its values are float32, and narrow if some have 16 bits. Kernels compute on wide rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.kernels.narrow_rows import BFLOAT16, FLOAT16_WORD, FULL_WORD
from pipeline.records import I32, U32, U64
from pipeline.settings.optimizer import RowOptimizerConfig

KEY_WORDS = 2
MAX_WIDTH = 1 << 20
"""Widest embedding accepted from a file. It limits the allocation per row that a file can cause."""
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


NUMBER_FORMATS = {"float32": FULL_WORD, "bfloat16": BFLOAT16, "float16": FLOAT16_WORD}
"""Number of each format of a row's values, by name."""


def formats_of_rows(rows: RowOptimizerConfig) -> tuple[str, ...]:
    """Number formats of the weights and of each part of the optimizer's state; empty if all are float32."""
    stored = rows.storage
    of_part = {"rowwise_adagrad_sum": "float32", "adam_v": stored.v or stored.state}
    formats = (stored.weights, *(of_part.get(name, stored.state) for name in STATE[rows.kind]))
    return () if set(formats) == {"float32"} else formats


@dataclass(frozen=True, slots=True)
class Part:
    """Values of a row that belong together: its weights, or one part of the optimizer's state."""

    name: str
    number_format: str
    size: int
    at: int
    """Place of the first value, counted in values of this format from the start of the row."""
    wide_at: int
    """Position of the first value in the wide row, in words."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Order of words in a row: key (2 words) | weights | optimizer state | last step | count | tag. The tag is valid
    only in the log. In a narrow row, 16-bit values come before 32-bit values, without gaps."""

    embedding_dim: int
    first_order: bool
    optimizer: str = "adam"
    """Kind of row optimizer, as in `pipeline.settings.optimizer`."""
    formats: tuple[str, ...] = ()
    """Number formats of the weights and of each part of the state; empty if all are float32."""

    @property
    def num_weights(self) -> int:
        return self.embedding_dim + self.first_order

    @property
    def parts(self) -> tuple[Part, ...]:
        """Weights and parts of the state, in the order of the wide row."""
        names = ("weights", *STATE[self.optimizer])
        sizes = [self.num_weights] * len(names)
        if self.optimizer == "rowwise_adagrad":
            sizes[1] = (self.embedding_dim > 0) + self.first_order
        formats = self.formats or ("float32",) * len(names)
        half_at = 2 * WEIGHTS_AT
        word_at = WEIGHTS_AT + (_halves(sizes, formats) + 1) // 2
        wide_at, parts = WEIGHTS_AT, []
        for name, number_format, size in zip(names, formats, sizes, strict=True):
            is_wide = number_format == "float32"
            parts.append(Part(name, number_format, size, word_at if is_wide else half_at, wide_at))
            wide_at += size
            word_at, half_at = (word_at + size, half_at) if is_wide else (word_at, half_at + size)
        return tuple(parts)

    @property
    def last_step_at(self) -> int:
        sizes, formats = zip(*((part.size, part.number_format) for part in self.parts), strict=True)
        halves = _halves(sizes, formats)
        return WEIGHTS_AT + sum(sizes) - halves + (halves + 1) // 2

    @property
    def tag_at(self) -> int:
        """Position of the tag, which is the last word and covers all words before it."""
        return self.last_step_at + 2

    @property
    def num_words(self) -> int:
        return self.tag_at + 1

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_words

    @property
    def wide(self) -> RowLayout:
        """Layout of the same row with float32 throughout."""
        return replace(self, formats=())

    def widening(self) -> I32:
        """[N, 4] parts of the whole row, for the kernels of `narrow_rows`. Parts that are adjacent in both rows are
        merged."""
        tail = [FULL_WORD, self.last_step_at, 3, self.wide.last_step_at]
        lines = [[FULL_WORD, 0, KEY_WORDS, 0], *map(_line, self.parts), tail]
        merged = lines[:1]
        for line in lines[1:]:
            number_format, at, size, wide_at = merged[-1]
            if line[:2] + line[3:] == [number_format, at + size, wide_at + size]:
                merged[-1][2] += line[2]
            elif line[2]:
                merged.append(line)
        return np.array(merged, np.int32)

    def lookup_of_weights(self) -> I32:
        """[1, 4] the weights alone, for the kernels of `narrow_rows` and wide rows of C words."""
        return np.array([[*_line(self.parts[0])[:3], 0]], np.int32)

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> RowLayout:
        """Return the layout with this description, the inverse of `describe`. Raises ValueError if it is not valid."""
        try:
            begin, end = described["embedding"]
            first_order = bool(described["first_order"][0] != described["first_order"][1])
            optimizer = next(kind for kind in reversed(STATE) if all(name in described for name in STATE[kind]))
            formats = described.get("formats", {})
            names = tuple(formats[name] for name in ("embedding", *STATE[optimizer])) if formats else ()
            layout = cls(end - begin, first_order, optimizer, names)
            known = NUMBER_FORMATS.keys() >= set(names)
            if known and 0 <= layout.embedding_dim <= MAX_WIDTH and layout.describe() == described:
                return layout
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            pass
        raise ValueError(f"row does not describe a row layout: {str(described)[:200]}")

    def describe(self) -> dict[str, Any]:
        """Attributes of the log: the offsets of all parts, so that a reader needs only the array. Offsets of weights
        and state count values of their format, which is float32 if "formats" is missing; other offsets count words."""
        weights, *state = self.parts
        first_order_at = weights.at + self.embedding_dim
        formats = {"embedding": weights.number_format, "first_order": weights.number_format}
        formats |= {part.name: part.number_format for part in state}
        return {
            "key": [0, 2],
            "embedding": [weights.at, first_order_at],
            "first_order": [first_order_at, weights.at + weights.size],
            **{part.name: [part.at, part.at + part.size] for part in state},
            "last_step": self.last_step_at,
            "count": self.last_step_at + 1,
            "tag": self.tag_at,
            **({"formats": formats} if self.formats else {}),
        }


def _halves(sizes: Iterable[int], formats: Iterable[str]) -> int:
    """Number of 16-bit values."""
    return sum(size for size, name in zip(sizes, formats, strict=True) if name != "float32")


def _line(part: Part) -> list[int]:
    return [NUMBER_FORMATS[part.number_format], part.at, part.size, part.wide_at]


def row_keys(rows_UW: U32) -> U64:
    """[U] keys stored in the rows, as a new array."""
    return np.ascontiguousarray(rows_UW[:, :KEY_WORDS]).view(np.uint64).reshape(-1)
