"""Gathers the examples of a window, in their shuffled order, into the batches of a block."""

from __future__ import annotations

from pipeline.data.bags import Bags
from pipeline.data.buffer import BufferTooSmall, Widths
from pipeline.data.window import Window
from pipeline.kernels import assemble
from pipeline.records import U64, Examples


class BatchWriter:
    """Writes one batch at a time: `begin`, then `add` for each window that the batch has examples of, then `end`."""

    def __init__(self, widths: Widths) -> None:
        self._widths = widths
        # A field's bags of a batch are contiguous, whichever windows they come from: where the next field's begin
        # is known only after the last window, so they wait here.
        self._bags = tuple(Bags() for _ in range(widths.num_multi))

    def begin(self, examples: Examples, batch: int) -> None:
        self._examples, self._batch = examples, batch
        self._first, self._end = examples.block.batch_bounds(batch)
        self._start = int(examples.batch_starts[batch])
        size = self._end - self._first
        room = self._room(0, self._widths.num_single * size)
        self._keys_SB = room.reshape(self._widths.num_single, size)
        for bags in self._bags:
            bags.clear()

    def add(self, window: Window, begin: int, end: int, at: int) -> None:
        """Examples `begin` to `end` of the window's order become the block's examples from `at`."""
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
        for source, bags in zip(window.bags, self._bags, strict=True):
            keys, offsets = bags.room(len(order), assemble.bag_sizes(source.offsets, order))
            assemble.gather_bags(source.offsets, source.keys, order, offsets, keys)
            bags.count += len(order)

    def end(self) -> None:
        """Lays the multi-hot fields behind the single-valued ones, and notes where the next batch begins."""
        at = self._keys_SB.size
        for bags, starts in zip(self._bags, self._examples.bags[self._batch], strict=True):
            starts[:] = bags.offsets[: bags.count + 1] + at
            self._room(at, bags.num_keys)[:] = bags.keys[: bags.num_keys]
            at += bags.num_keys
        self._examples.batch_starts[self._batch + 1] = self._start + at

    def _room(self, at: int, count: int) -> U64:
        """Room for `count` values from the batch's value `at`."""
        keys_V = self._examples.keys_V
        begin, end = self._start + at, self._start + at + count
        if end > len(keys_V):
            # The batches to come are taken to need as much as those so far.
            share = self._examples.block.num_examples / max(1, self._end)
            used = self._examples.nbytes
            raise BufferTooSmall(used + int(8 * end * share), used + 8 * len(keys_V))
        return keys_V[begin:end]
