"""read: load a block's examples from files into a buffer of the read ring."""

from __future__ import annotations

from pipeline.data.buffer import BufferTooSmall, ReadBuffer
from pipeline.data.source import Source
from pipeline.records import Block, Examples, Rank, Refusal


def read(block: Block, source: Source, buffer: ReadBuffer, rank: Rank) -> Examples | Refusal:
    """Fill `buffer` with the worker's part of the block. Refuses a block that does not fit; the driver then makes
    blocks smaller."""
    try:
        return source.read(block, buffer, rank)
    except BufferTooSmall as too_small:
        what = f"block {block.number} ({block.num_batches} batches): {too_small}"
        return Refusal(block, "window", what, too_small.needed_bytes, "read_ring_bytes")
