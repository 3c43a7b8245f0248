"""Lookahead for cache policies: the blocks that follow a stretch."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.cluster.crew import Crew
from pipeline.messages.sizes import format_size_down
from pipeline.preflight.setup import Setup
from pipeline.records import Block
from pipeline.worker.worker import Worker


def as_far_as_known(coming: Iterable[Block], known_examples: int) -> list[Block]:
    """Blocks of `coming`, which follows a stretch, with keys that may be known while its last block is planned."""
    known: list[Block] = []
    for block in coming:
        first = known[0] if known else block
        if block.agenda_batch > first.agenda_batch + known_examples // block.batch_size:
            break
        known.append(block)
    return known


class ComingBlocks:
    """Announces coming blocks to the workers, and reports, only once, if there is no room for all their keys. Does
    nothing if no policy needs them."""

    def __init__(self, setup: Setup) -> None:
        self._storage, self._agenda = setup.workflow.storage, setup.agenda
        self._reported = not self._storage.foresees

    def announce(self, crew: Crew, begin: Block | None, block_batches: int) -> None:
        """Announce the blocks from `begin` on, the first block after the next stretch (None: there is none)."""
        if not self._storage.foresees:
            return
        coming = self._agenda.blocks(block_batches, begin) if begin else []
        crew.each(Worker.announce, as_far_as_known(coming, self._storage.known_examples))

    def shortage(self, crew: Crew) -> str | None:
        """Return a remark, the first time only, if the keys of fewer examples are known than the workflow asks for."""
        if self._reported:
            return None
        least = [examples for examples in crew.each(Worker.least_known) if examples is not None]
        if not least:
            return None
        self._reported = True
        storage = self._storage
        return (
            f"storage.known is {format_size_down(storage.known)}, and the keys of {storage.known_examples:,} coming "
            f"examples take more: at times those of {min(least):,} are known; raise it, or lower storage.known_examples"
        )
