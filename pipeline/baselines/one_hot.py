"""Examples of a split as hashed one-hot features: categories and list values by key, numbers by range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.data.buffer import BufferTooSmall, ReadBuffer
from pipeline.data.source import Source
from pipeline.records import F32, I64, U64, Block, Examples

F64 = NDArray[np.float64]
SLOT_BITS = 20
"""Values of all columns are hashed into a shared space of 2 ** SLOT_BITS numbers."""
NUM_RANGES = 32
READ_ROWS = 1 << 15
MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Lists:
    """Values of a list column, example by example."""

    rows_V: I64
    features_V: I64
    shares_V: F64
    """1 / number of values in the example's list."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """N examples with the features of their columns: first columns with one value per example, then lists."""

    labels_NT: F32
    """0 or 1; NaN if the example lacks the label."""
    weights_N: F64
    single_CN: I64
    lists: tuple[Lists, ...]

    def by_column(self, of_feature: F64) -> Iterator[F64]:
        """Yield for each column [N] the number `of_feature` of each example's value; for lists, the mean."""
        for features_N in self.single_CN:
            yield of_feature[features_N]
        for of in self.lists:
            each_V = of_feature[of.features_V] * of.shares_V
            yield np.bincount(of.rows_V, each_V, len(self.labels_NT)).astype(np.float64)

    def sums(self, of_feature: F64) -> F64:
        """[N] sum of `by_column` over all columns."""
        total_N = np.zeros(len(self.labels_NT))
        for column_N in self.by_column(of_feature):
            total_N += column_N
        return total_N

    def back(self, of_row: F64, num_features: int) -> F64:
        """[num_features] sum of `of_row` [N] over the examples of each feature: the transpose of `sums`."""
        each_V = np.broadcast_to(of_row, self.single_CN.shape).ravel()
        found = np.bincount(self.single_CN.ravel(), each_V, num_features).astype(np.float64)
        for of in self.lists:
            found += np.bincount(of.features_V, of_row[of.rows_V] * of.shares_V, num_features)
        return found

    def renumbered(self, feature_of: I64) -> OneHot:
        """Return the same examples with renumbered features."""
        lists = tuple(replace(of, features_V=feature_of[of.features_V]) for of in self.lists)
        return replace(self, single_CN=feature_of[self.single_CN], lists=lists)


class Encoder:
    """Reader of a source's splits as features. Values absent from the training rows are feature 0. The ranges of a
    number contain about the same number of training rows."""

    def __init__(self, source: Source, most_rows: int) -> None:
        """Read up to `most_rows` training rows, evenly spaced in the order of the first epoch, into `train`."""
        self._source = source
        self._feature_of = np.zeros(0, np.int64)
        step = -(-source.num_examples["train"] // most_rows)
        numbers = [examples.numbers_NX[::step].copy() for examples in _blocks(source, "train")]
        self._edges = [edges_of(values_N) for values_N in np.concatenate(numbers).T]
        train = _joined([self._encoded(examples, step) for examples in _blocks(source, "train")])
        counts = train.back(np.ones(len(train.labels_NT)), 1 << SLOT_BITS)
        seen = counts > 0
        self._feature_of = np.where(seen, np.cumsum(seen), 0)
        self.num_features = int(seen.sum()) + 1
        self.train = train.renumbered(self._feature_of)

    def read(self, split: str) -> Iterator[OneHot]:
        """Yield all examples of a split, in parts."""
        for examples in _blocks(self._source, split):
            yield self._encoded(examples, 1).renumbered(self._feature_of)

    def _encoded(self, examples: Examples, step: int) -> OneHot:
        """Encode every `step`-th example, with hashed values as features."""
        layout, size = self._source.layout, len(examples.labels_NT)
        labels_NT = examples.labels_NT[::step].copy()
        single = [
            _hashed(examples.keys_V[place * size : (place + 1) * size : step], field)
            for place, field in enumerate(layout.single_S)
        ]
        for number, edges in enumerate(self._edges):
            ranges_N = np.searchsorted(edges, examples.numbers_NX[::step, number], "right")
            single.append(_hashed(ranges_N.astype(np.uint64), layout.num_fields + number))
        lists = []
        # The bags of sequences' item lists follow those of the fields.
        bags = examples.bags[0][: len(layout.multi_M)] if layout.multi_M else ()
        for starts, field in zip(bags, layout.multi_M, strict=True):
            begins_N, lengths_N = starts[:-1:step], np.diff(starts)[::step]
            rows_V = np.repeat(np.arange(len(labels_NT)), lengths_N)
            within_V = np.arange(len(rows_V)) - np.repeat(np.cumsum(lengths_N) - lengths_N, lengths_N)
            hashed_V = _hashed(examples.keys_V[begins_N[rows_V] + within_V], field)
            lists.append(Lists(rows_V, hashed_V, 1 / lengths_N[rows_V]))
        weights_N = np.ones(size) if examples.weights_N is None else examples.weights_N.astype(np.float64)
        single_CN = np.array(single, np.int64).reshape(len(single), len(labels_NT))
        return OneHot(labels_NT, weights_N[::step], single_CN, tuple(lists))


def edges_of(values_N: F32) -> F32:
    """Edges of ranges with about the same number of rows. The most frequent value is a separate range, and is not
    counted otherwise: else a number that is mostly 0 would have a single edge."""
    values, counts = np.unique(values_N, return_counts=True)
    often = values[counts.argmax()]
    others_N = values_N[values_N != often]
    edges = np.quantile(others_N, np.arange(1, NUM_RANGES) / NUM_RANGES) if len(others_N) else []
    return np.unique(np.array([often, np.nextafter(often, np.float32(np.inf)), *edges], np.float32))


def _joined(parts: list[OneHot]) -> OneHot:
    """Concatenation of the parts' examples."""
    firsts = np.cumsum([0, *(len(part.labels_NT) for part in parts)])
    lists = []
    for of_column in zip(*(part.lists for part in parts), strict=True):
        rows = [of.rows_V + first for of, first in zip(of_column, firsts, strict=False)]
        features, shares = ([getattr(of, name) for of in of_column] for name in ("features_V", "shares_V"))
        lists.append(Lists(*map(np.concatenate, (rows, features, shares))))
    labels, weights = ([getattr(part, name) for part in parts] for name in ("labels_NT", "weights_N"))
    single_CN = np.concatenate([part.single_CN for part in parts], axis=1)
    return OneHot(np.concatenate(labels), np.concatenate(weights), single_CN, tuple(lists))


def _blocks(source: Source, split: str) -> Iterator[Examples]:
    """Yield the examples of a split's first epoch in blocks of one batch, each valid until the next."""
    total, buffer = source.num_examples[split], ReadBuffer(0)
    for begin in range(0, total, READ_ROWS):
        size = min(READ_ROWS, total - begin)
        block = Block(
            number=0, split=split, epoch=0, first_batch=begin // READ_ROWS, num_batches=1, first_example=begin,
            num_examples=size, batch_size=READ_ROWS, first_step=0, closes_split=False,
        )  # fmt: skip
        examples = None
        while examples is None:
            try:
                examples = source.read(block, buffer)
            except BufferTooSmall as small:
                # The needed size is known only for the lists read so far, so double it.
                buffer = ReadBuffer(2 * small.needed_bytes)
        yield examples


def _hashed(keys_V: U64, column: int) -> I64:
    """[V] hashes of a column's values, below 2 ** SLOT_BITS. The hash of a value differs between columns."""
    mixed_V = (keys_V ^ np.uint64((column + 1) * MIX % (1 << 64))) * np.uint64(MIX)
    return ((mixed_V ^ (mixed_V >> np.uint64(29))) * np.uint64(MIX) >> np.uint64(64 - SLOT_BITS)).astype(np.int64)
