"""read: a block's examples, from files into a buffer of the read ring."""

from __future__ import annotations

from pipeline.data.buffer import BufferTooSmall, ReadBuffer
from pipeline.data.source import Source
from pipeline.records import Block, Examples, Refusal, Share


def read(block: Block, source: Source, buffer: ReadBuffer, share: Share) -> Examples | Refusal:
    """Fill `buffer` with a share of the block; one that does not fit is refused, and `plan` makes blocks smaller."""
    try:
        return source.read(block, buffer, share)
    except BufferTooSmall as too_small:
        return Refusal(block, "window", str(too_small))
