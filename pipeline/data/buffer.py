"""Memory of the read ring: one reserved address range per buffer, laid out again for each block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pipeline.machine.limits import ALIGNMENT, aligned_empty
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import Block, Examples


class BufferTooSmall(ValueError):
    """A block does not fit into its buffer of the read ring."""

    def __init__(self, needed_bytes: int, limit_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"its examples would need {format_size_up(needed_bytes)} of the read ring, and its buffer has "
            f"{format_size_down(limit_bytes)}"
        )


def padded(num_bytes: int) -> int:
    """Bytes of an array, rounded up to a multiple of 64, where the next array starts."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Widths:
    """Number of columns of each kind."""

    num_labels: int
    weighted: bool
    num_numbers: int
    num_single: int
    num_multi: int
    grouped: bool = False
    num_lists: int = 0
    """Number of item lists of sequences, which come after the multi-hot fields."""
    num_list_numbers: int = 0

    @property
    def num_bags(self) -> int:
        """Number of multi-hot fields and item lists."""
        return self.num_multi + self.num_lists

    def array_bytes(self, batch_sizes: Sequence[int]) -> int:
        """Bytes of a block's arrays, excluding its values (keys)."""
        num_examples = sum(batch_sizes)
        floats = [self.num_labels, int(self.weighted), self.num_numbers]
        bags = [padded(4 * self.num_bags * (size + 1)) for size in batch_sizes]
        groups = padded(8 * num_examples * self.grouped)
        return sum(padded(4 * num_examples * f) for f in floats) + groups + padded(8 * (len(bags) + 1)) + sum(bags)


class ReadBuffer:
    """One buffer of the read ring. It contains one block at a time: `begin` discards the previous one.

    The slot reserves address space for `limit_bytes` up front and uses memory only as blocks fill it. So a block can
    grow without a copy while it is read (its number of values is known only at its end), and blocks of equal size reuse
    the same pages, which are already mapped.
    """

    def __init__(self, limit_bytes: int, empty: Callable[[int, DTypeLike], NDArray[Any]] = aligned_empty) -> None:
        """`empty`: allocator of the memory."""
        self.limit_bytes = limit_bytes
        self._arena = empty(limit_bytes, np.uint8)
        self._used = 0

    def begin(self, block: Block, widths: Widths) -> Examples:
        """Uninitialized arrays for the block; `keys_V` is the rest of the slot, part of which goes to lists of numbers
        when the block is finished.

        Raises BufferTooSmall if the arrays, plus one value per example and single-valued field, do not fit.
        """
        self._used = 0
        n = block.num_examples
        sizes = [end - begin for begin, end in map(block.batch_bounds, range(block.num_batches))]
        needed = widths.array_bytes(sizes) + 8 * n * widths.num_single
        if needed > self.limit_bytes:
            raise BufferTooSmall(needed, self.limit_bytes)
        return Examples(
            block=block,
            labels_NT=self._cut((n, widths.num_labels), np.float32),
            weights_N=self._cut((n,), np.float32) if widths.weighted else None,
            numbers_NX=self._cut((n, widths.num_numbers), np.float32),
            groups_N=self._cut((n,), np.uint64) if widths.grouped else None,
            batch_starts=self._cut((len(sizes) + 1,), np.int64),
            bags=tuple(self._cut((widths.num_bags, size + 1), np.int32) for size in sizes),
            keys_V=self._rest(),
            nbytes=self._used,
        )

    def taken(self, examples: Examples) -> NDArray[np.uint8]:
        """The block's bytes in this buffer, as one array."""
        return self._arena[: examples.nbytes]

    def at(self, array: NDArray[Any]) -> int:
        """Byte offset of one of the block's arrays within the slot."""
        return int(array.ctypes.data - self._arena.ctypes.data)

    def _cut(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        begin, self._used = self._used, self._used + padded(num_bytes)
        return self._arena[begin : begin + num_bytes].view(dtype).reshape(shape)

    def _rest(self) -> NDArray[np.uint64]:
        whole = (self.limit_bytes - self._used) // 8 * 8
        return self._arena[self._used : self._used + whole].view(np.uint64)
