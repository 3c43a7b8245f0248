"""Copy a window's examples, in shuffled order, into the batches of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from pipeline.data.bags import Bags
from pipeline.data.buffer import BufferTooSmall, Widths
from pipeline.data.files import InputColumn
from pipeline.data.window import Window
from pipeline.kernels import assemble
from pipeline.records import F32, U64, Examples, FieldLayout


def widths_of(columns: Sequence[InputColumn], layout: FieldLayout) -> Widths:
    """Number of columns of each kind among `columns`. `layout`: layout of their categorical fields."""
    settings = [column.setting for column in columns]
    return Widths(
        num_labels=settings.count("data.labels"),
        weighted="data.weight" in settings,
        num_numbers=settings.count("data.numbers"),
        num_single=len(layout.single_S),
        num_multi=len(layout.multi_M),
        grouped="metrics.group" in settings,
        num_lists=settings.count("data.sequences.items"),
        num_list_numbers=settings.count("data.sequences.numbers"),
    )


class BatchWriter:
    """Writer of a block's batches, one by one: `begin`, `add` for each window with examples of the batch, then `end`.
    Call `finish` after all batches of the block."""

    def __init__(self, widths: Widths) -> None:
        self._widths = widths
        # The bags of a field are contiguous within a batch, whichever windows they come from. The start of the next
        # field is known only after the last window, so bags are collected here until then.
        self._bags = tuple(Bags() for _ in range(widths.num_bags))
        self._numbers = tuple(Bags("float32") for _ in range(widths.num_list_numbers))

    def begin(self, examples: Examples, batch: int) -> None:
        if batch == 0:
            self._lists: list[tuple[int, ...]] = []
            self._list_numbers: list[list[F32]] = []
            self._num_cut = 0
        self._examples, self._batch = examples, batch
        self._first, self._end = examples.block.batch_bounds(batch)
        self._start = int(examples.batch_starts[batch])
        size = self._end - self._first
        room = self._room(0, self._widths.num_single * size)
        self._keys_SB = room.reshape(self._widths.num_single, size)
        for bags in (*self._bags, *self._numbers):
            bags.clear()

    def add(self, window: Window, begin: int, end: int, at: int) -> None:
        """Copy examples `begin` to `end` of the window's order to the block's examples, from example `at` on."""
        w, examples = self._widths, self._examples
        to, order = slice(at, at + end - begin), window.order[begin:end]
        assemble.transpose_floats(window.floats_CN, 0, begin, examples.labels_NT[to])
        if examples.weights_N is not None:
            examples.weights_N[to] = window.floats_CN[w.num_labels, begin:end]
        assemble.transpose_floats(window.floats_CN, w.num_labels + w.weighted, begin, examples.numbers_NX[to])
        if examples.groups_N is not None:
            examples.groups_N[to] = window.groups_N[begin:end]
        for fields, keys_SN in window.key_banks():
            self._keys_SB[fields, at - self._first : at - self._first + end - begin] = keys_SN[:, begin:end]
        sources = (*window.bags, *window.histories.numbers)
        for source, bags in zip(sources, (*self._bags, *self._numbers), strict=True):
            keys, offsets = bags.room(len(order), assemble.bag_sizes(source.offsets, order))
            assemble.gather_bags(source.offsets, source.keys, order, offsets, keys)
            bags.count += len(order)
        if w.num_lists:
            self._num_cut += int(window.histories.cut_N[order].sum())

    def end(self) -> None:
        """Append the multi-hot fields and the item lists after the single-valued fields, and set the start of the next
        batch."""
        ends = [self._keys_SB.size]
        for bags, starts in zip(self._bags, self._examples.bags[self._batch], strict=True):
            at = ends[-1]
            starts[:] = bags.offsets[: bags.count + 1] + at
            self._room(at, bags.num_keys)[:] = bags.keys[: bags.num_keys]
            ends.append(at + bags.num_keys)
        self._examples.batch_starts[self._batch + 1] = self._start + ends[-1]
        self._lists.append(tuple(ends[self._widths.num_multi :]))
        self._list_numbers.append([bags.keys[: bags.num_keys].copy() for bags in self._numbers])

    def finish(self) -> Examples:
        """Return the block's examples with their values. Lists of numbers are placed after all keys. Raises
        BufferTooSmall if the slot is too small."""
        examples = self._examples
        num_keys, num_floats = int(examples.batch_starts[-1]), sum(map(len, chain(*self._list_numbers)))
        num_words = num_keys + -(-num_floats // 2)
        if num_words > len(examples.keys_V):
            raise BufferTooSmall(examples.nbytes + 8 * num_words, examples.nbytes + 8 * len(examples.keys_V))
        floats, at = examples.keys_V[num_keys:].view(np.float32), 0
        placed: list[tuple[F32, ...]] = []
        for of_batch in self._list_numbers:
            ends = np.cumsum([at, *map(len, of_batch)]).tolist()
            placed.append(tuple(floats[begin:end] for begin, end in pairwise(ends)))
            for values, place in zip(of_batch, placed[-1], strict=True):
                place[:] = values
            at = ends[-1]
        return replace(
            examples, keys_V=examples.keys_V[:num_keys], nbytes=examples.nbytes + 8 * num_words,
            lists=tuple(self._lists) if self._widths.num_lists else (), list_numbers=tuple(placed),
            num_cut=self._num_cut,
        )  # fmt: skip

    def _room(self, at: int, count: int) -> U64:
        """View of `count` values, from value `at` of the batch on. Raises BufferTooSmall if the slot is too small."""
        keys_V = self._examples.keys_V
        begin, end = self._start + at, self._start + at + count
        if end > len(keys_V):
            # Estimate for the whole block: assume that the remaining batches need as much per example as those so far.
            share = self._examples.block.num_examples / max(1, self._end)
            used = self._examples.nbytes
            raise BufferTooSmall(used + int(8 * end * share), used + 8 * len(keys_V))
        return keys_V[begin:end]
