"""Keys of coming blocks, for policies that use the next use of a row."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.data.identity import Begun
from pipeline.data.source import Source
from pipeline.machine.threads import share_of
from pipeline.records import U64, Block
from pipeline.stages.dedup import KeyOwners
from pipeline.stages.scan import Scanner, scan
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.places import Places
from pipeline.workflow import Workflow


class Foresight:
    """Reads the keys of coming blocks and adds them to the next uses in `places`."""

    def __init__(self, workflow: Workflow, source: Source, places: Places, owners: KeyOwners | None, rank: int) -> None:
        storage, begun = workflow.storage, Begun(source.identity)
        self._reader = KeyReader(workflow.data, workflow.seed, share_of(workflow.schedule.threads), begun)
        self._scanner = Scanner(self._unique_keys, storage.known_examples, storage.known)
        self._places, self._owners, self._rank = places, owners, rank
        self.coming: Sequence[Block] = ()
        """Blocks that follow the next stretch, as far as `scan` needs them."""
        self.scanned = -1
        """Number of the last block for which `scan` has run."""

    @property
    def least_known(self) -> int | None:
        return self._scanner.least_known

    def begin(self, blocks: Sequence[Block]) -> None:
        self._scanner.begin([*blocks, *self.coming], self._places.next_uses)
        self.scanned = -1

    def scan(self, block: Block) -> None:
        scan(block, self._scanner, self._places)
        self.scanned = block.number

    def _unique_keys(self, block: Block) -> U64:
        """Unique keys, in this worker's shards, that any worker needs for the block."""
        keys_U = self._reader.distinct_keys(block)
        return keys_U if self._owners is None else keys_U[self._owners.of(keys_U) == self._rank]

    def close(self) -> None:
        self._reader.close()
