"""The other workers as seen by one worker: key requests, and agreement on which blocks to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.comm.key_exchange import exchange_keys
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.records import Block, Examples, OwnedKeys, Rank, Refusal, Staged, Unique
from pipeline.stages.dedup import KeyOwners
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.stages.unite import STOPPED_ELSEWHERE, key_requests, unite
from pipeline.worker.flight import Flight, expect
from pipeline.worker.membership import Membership


@dataclass(slots=True)
class FirstRefused:
    """Numbers of the first refused blocks of a stretch; one past its last block if none was refused."""

    here: int
    """First block that this worker refused."""
    anywhere: int
    """First block that any worker is known to have refused, as agreed in `train`. No worker trains on it or on later
    blocks."""


class Peers:
    """The peers of a single worker: none, so nothing is sent and no agreement is needed."""

    idle = frozenset({"unite"})
    """Stages with nothing to do."""
    rank = Rank()
    keeps_reads = True
    """True if blocks that were read before a refusal are still in their buffers."""

    def pack(self, flight: Flight) -> None:
        """Create the key requests to all owners from the result of `dedup`."""

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        """Return the working set of the block, for `plan`. May wait for a GPU."""
        if isinstance(flight.unique, Pending):
            flight.unique = flight.unique.get()
        assert flight.unique, "expected what dedup returns, got None"
        return flight.unique

    def unite(self, flight: Flight, refused: bool) -> None:
        """Send the key requests, and unite those of all workers. If this worker has `refused` the block, only take part
        in the exchange."""
        raise AssertionError("one worker has nobody to unite with")

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        """Return the total example weight of each whole batch (see `Examples.batch_weights`) if all workers have
        planned the block. Otherwise return None: no worker trains on it or on later blocks, and workers that have
        planned these only move their rows."""
        return ()

    def must_run(self, refused: FirstRefused, stage: str, number: int) -> bool:
        """True if this stage must run for a block that this worker refused, since other workers are waiting in a
        collective."""
        return False

    def after_train(self, staged: Staged) -> None:
        """Called after the steps of the block were submitted to the device."""


class OtherWorkers(Peers):
    """The other workers of a run with several workers."""

    idle = frozenset()
    # If another worker refused first, later blocks may have overwritten the buffers of earlier ones on this worker.
    keeps_reads = False

    def __init__(
        self, membership: Membership, owners: KeyOwners, num_fields: int, counts_examples: bool, num_tasks: int = 0
    ) -> None:
        """`num_tasks`: number of labels of a workflow with `data.tasks`, which weighs each label separately; else 0."""
        self._membership, self._owners = membership, owners
        self._num_fields, self._counts_examples = num_fields, counts_examples
        self._num_tasks = num_tasks
        self.rank = membership.rank
        self._union = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)

    def pack(self, flight: Flight) -> None:
        if isinstance(flight.unique, Refusal):
            flight.key_requests = [flight.unique] * self._owners.world
        else:
            unique = expect(Unique, flight.unique)
            flight.key_requests = key_requests(unique, self._owners, self._num_fields, self._counts_examples)

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        assert flight.owned_keys, "expected what unite returns, got None"
        return flight.owned_keys

    def unite(self, flight: Flight, refused: bool) -> None:
        stopped = Refusal(flight.block, "pause", STOPPED_ELSEWHERE)
        sent = flight.key_requests or [stopped] * self.rank.world
        received = exchange_keys(flight.block, sent, self._membership.key_group)
        flight.key_requests = None
        if not refused:
            flight.owned_keys = unite(flight.block, received, self._union)

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        refuses = block.number >= refused.here
        weights_K = [0.0] * block.num_batches * max(1, self._num_tasks)
        if not refuses:
            assert flight
            weights_K = expect(Examples, flight.examples).batch_weights(by_label=self._num_tasks > 0)
        refusals, *weights_K = self._membership.group.sums([float(refuses), *weights_K])
        return None if refusals else weights_K

    def must_run(self, refused: FirstRefused, stage: str, number: int) -> bool:
        return stage == "unite" or (stage == "train" and number <= refused.anywhere)

    def after_train(self, staged: Staged) -> None:
        # `upload` copies from the read buffer, which another block may reuse after `train` returns.
        staged.ready.wait()
