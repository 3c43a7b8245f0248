"""The order of examples: pure functions of (seed, epoch, span), so that any block of any pass can be reread.

The order of an epoch: the row groups are permuted and their examples concatenated; the result is cut into windows of
`shuffle_window` examples, and each window is permuted. Only the training split is shuffled. A pass over a span orders
the span's rows in the same way: its row groups are those of the files, cut at the span's bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipeline.data.groups import RowGroup
from pipeline.data.identity import Identity
from pipeline.records import I64
from pipeline.spans.calendar import Cuts
from pipeline.spans.passes import ARRIVAL, SPAN, Leg

Part = tuple[RowGroup, int, int]
"""Consecutive rows of a row group: the first row, and the end (exclusive)."""


def is_shuffled(split: str, shuffle_window: int) -> bool:
    """True if the split is shuffled; otherwise examples are read in file order."""
    return split == "train" and shuffle_window > 0


def group_order(num_groups: int, seed: int, epoch: int, span: int | None = None) -> I64:
    """[num_groups] row group numbers in the order of this epoch, or of this pass over a span."""
    return _permutation(num_groups, seed, epoch, span, 0)


def window_order(num_examples: int, seed: int, epoch: int, window: int, span: int | None = None) -> I64:
    """[num_examples] examples of the window in shuffled order; `window` is its number within the pass."""
    return _permutation(num_examples, seed, epoch, span, 1 + window)


def _permutation(size: int, seed: int, epoch: int, span: int | None, stream: int) -> I64:
    # Philox is counter-based: every (seed, epoch, span, stream) has its own stream, at no setup cost. Span numbers
    # start at 1 here, since trailing zeros of a seed sequence are ignored.
    of_span = [] if span is None else [1 + span]
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch, stream, *of_span]))
    return np.random.Generator(bits).permutation(size)


class PassOrder:
    """Parts of row groups in the order of any pass."""

    def __init__(
        self, groups: Mapping[str, Sequence[RowGroup]], identity: Identity, seed: int, shuffle_window: int
    ) -> None:
        """`groups`: non-empty row groups of each split, file by file. `identity`: see `Source`."""
        self._seed, self._shuffle_window = seed, shuffle_window
        self._parts: dict[tuple[str, int | None], list[Part]] = {
            (split, None): [(group, 0, group.num_rows) for group in groups[split]] for split in groups
        }
        files = identity["train"].files if "train" in identity else []
        cuts = [cut for file in files for cut in file.spans or ()]
        moved = [n in (file.moved or ()) for file in files for n in range(len(file.spans or ()))]
        for number, part in _cut(groups.get("train", ()), cuts):
            if (span := cuts[number][0]) is not None:
                self._parts.setdefault(("train", span), []).append(part)
                self._parts.setdefault((SPAN, span), []).extend([] if moved[number] else [part])
        self._num_rows = {key: sum(end - begin for _, begin, end in parts) for key, parts in self._parts.items()}

    @property
    def most_rows(self) -> int:
        """Number of rows in the longest pass."""
        spans = [rows for (split, span), rows in self._num_rows.items() if span is not None]
        splits = [rows for (split, span), rows in self._num_rows.items() if span is None]
        return max([1, *spans, *(rows for rows in splits if not spans or rows != self._num_rows["train", None])])

    def num_rows(self, leg: Leg) -> int:
        return self._num_rows.get(_key(leg), 0)

    def places(self, leg: Leg, number: int, count: int) -> I64:
        """[count] position in file order of each example of window `number`, which has `count` examples."""
        if is_shuffled(leg.split, self._shuffle_window):
            return window_order(count, self._seed, leg.epoch, number, leg.span)
        return np.arange(count, dtype=np.int64)

    def slices(self, leg: Leg, begin: int, end: int) -> Iterator[Part]:
        """Row groups, and the rows of each, that contain examples `begin` to `end` of the order before windows are
        permuted."""
        parts = self._parts.get(_key(leg), [])
        turn: I64 = np.arange(len(parts))
        if is_shuffled(leg.split, self._shuffle_window):
            turn = group_order(len(parts), self._seed, leg.epoch, leg.span)
        starts = np.cumsum([0, *(parts[p][2] - parts[p][1] for p in turn)])
        first = int(np.searchsorted(starts, begin, "right")) - 1
        for place in range(first, int(np.searchsorted(starts[:-1], end))):
            start, (group, row, stop) = int(starts[place]), parts[turn[place]]
            yield group, row + max(0, begin - start), min(stop, row + end - start)


def _key(leg: Leg) -> tuple[str, int | None]:
    """Key in `_parts`. A span is scored in file order, without the rows of other spans that it is trained on with."""
    split = SPAN if leg.split == ARRIVAL else leg.split
    return split, leg.span if split in (SPAN, "train") else None


def _cut(groups: Sequence[RowGroup], cuts: Cuts) -> Iterator[tuple[int, Part]]:
    """Parts of row groups, each with the index of its cut. `cuts`: (span, number of rows) pairs of all files, in
    order."""
    left = iter(groups)
    group, row = next(left, None), 0
    for number, (_, num_rows) in enumerate(cuts):
        while num_rows:
            assert group, "the calendar has the rows of the row groups"
            taken = min(num_rows, group.num_rows - row)
            yield number, (group, row, row + taken)
            num_rows, row = num_rows - taken, row + taken
            if row == group.num_rows:
                group, row = next(left, None), 0
