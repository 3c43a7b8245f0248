"""read: a block's examples, from files into a buffer of the read ring."""

from __future__ import annotations

from pipeline.data.buffer import BufferTooSmall, ReadBuffer
from pipeline.data.source import Source
from pipeline.records import Block, Examples, Refusal


def read(block: Block, source: Source, buffer: ReadBuffer) -> Examples | Refusal:
    """Fill `buffer` with the block; a block that does not fit is refused, and `plan` makes blocks smaller."""
    try:
        return source.read(block, buffer)
    except BufferTooSmall as too_small:
        return Refusal(block, "window", str(too_small))
