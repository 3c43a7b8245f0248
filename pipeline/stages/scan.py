"""scan: read the keys of coming blocks, long before the blocks are read, for policies that choose by next uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pipeline.records import U64, Block
from pipeline.storage.next_uses import NextUses
from pipeline.storage.places import Places

FREE_SHARE = 8
"""Divisor of the number of device slots: no keys are read while more than 1/8 of the slots are free, so a table that
fits costs nothing."""
MAX_BLOCKS_AT_ONCE = 4
"""Maximum number of blocks whose keys one call reads, so that the first calls do not delay training."""


class Scanner:
    """State that `scan` keeps between blocks: the coming blocks, and keys that were read but did not fit yet."""

    def __init__(self, unique_keys: Callable[[Block], U64], examples: int, max_bytes: int) -> None:
        """`unique_keys`: reader of a block's unique keys. `examples`: number of examples after a block whose keys must
        be known when it is planned. `max_bytes`: maximum size of known keys."""
        self._unique_keys, self._examples, self.max_bytes = unique_keys, examples, max_bytes
        self.coming: deque[Block] = deque()
        self._held: tuple[Block, U64] | None = None
        self.least_known: int | None = None
        """Minimum number of examples after a block whose keys were known when `max_bytes` was the limit; None if it
        never was."""

    def begin(self, blocks: Iterable[Block], next_uses: NextUses) -> None:
        """Continue with these blocks; the first ones may already be known. Known blocks before them are forgotten: a
        run that ends early never plans them. A block that begins before the end of the known ones is skipped."""
        blocks = list(blocks)
        next_uses.forget_before(blocks[0].agenda_batch)
        self.coming = deque(block for block in blocks if block.agenda_batch >= next_uses.end)

    def until(self, block: Block) -> int:
        """Batch of the agenda up to which blocks should be known when this block is planned."""
        return block.agenda_batch + block.num_batches + -(-self._examples // block.batch_size)

    def keys_of(self, block: Block) -> U64:
        """Unique keys of a block. They are kept until the next call because they may not fit now."""
        if self._held is None or self._held[0] != block:
            self._held = block, self._unique_keys(block)
        return self._held[1]


def scan(block: Block, scanner: Scanner, places: Places) -> None:
    """Read the keys of coming blocks, up to the configured number of examples after `block`, or fewer if they do not
    fit. Reads none until rows may have to leave. This depends only on the numbers of keys, since all blocks before
    `block` are planned."""
    next_uses, device = places.next_uses, places.device
    first = next_uses.end_of_first
    assert first is None or first > block.agenda_batch, "the keys of a block that was not planned yet still take room"
    if device.num_free > len(device.keys_S) // FREE_SHARE:
        return
    end, coming, added = block.agenda_batch + block.num_batches, scanner.coming, 0
    while coming and coming[0].agenda_batch < scanner.until(block) and added < MAX_BLOCKS_AT_ONCE:
        if coming[0].agenda_batch + coming[0].num_batches > block.agenda_batch:
            keys_U = scanner.keys_of(coming[0])
            if next_uses.bytes_with(len(keys_U)) > scanner.max_bytes:
                known = max(0, coming[0].agenda_batch - end) * block.batch_size
                scanner.least_known = known if scanner.least_known is None else min(known, scanner.least_known)
                break
            next_uses.add(coming[0], keys_U)
            added += 1
        coming.popleft()
