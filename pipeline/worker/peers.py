"""The part of other workers in a block: keys that are asked for, what all agree upon. One worker has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.comm.key_exchange import exchange_keys
from pipeline.records import Block, Examples, KeyRequest, OwnedKeys, Rank, Refusal, Staged, Unique
from pipeline.stages.dedup import KeyOwners
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.stages.unite import STOPPED_ELSEWHERE, UniteTables, key_requests, unite
from pipeline.worker.flight import Flight, expect
from pipeline.worker.membership import Membership


@dataclass(slots=True)
class FirstRefused:
    """Numbers of blocks; of a stretch."""

    here: int
    """The first that this worker has refused."""
    anywhere: int
    """The first that any has: nobody trains on it or on later ones."""


class Peers(Protocol):
    idle: frozenset[str]
    """Stages that have nothing to do."""
    rank: Rank
    keeps_reads: bool
    """Whether blocks that were read before a refusal lie in their buffers still."""

    def pack(self, flight: Flight) -> None:
        """Make the key requests to other workers from what `dedup` found."""

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        """The working set that `plan` decides on, for which it may have to wait."""

    def unite(self, flight: Flight, refused: bool) -> None:
        """Put together what all workers sent; only the sending is to be done where the block was `refused`."""

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        """Return what the examples of each whole batch weigh, if all workers have planned the block. Else None, and
        nobody trains on it or on later ones; those who have planned them move their rows."""

    def wait_for(self, refused: FirstRefused, stage: str, number: int) -> bool:
        """Return whether others wait in a collective of this stage, though here the block was refused."""

    def after_train(self, staged: Staged) -> None:
        """The block's steps were given to the device."""


class NoPeers:
    idle, rank, keeps_reads = frozenset({"unite"}), Rank(), True

    def pack(self, flight: Flight) -> None:
        pass

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        if isinstance(flight.unique, Pending):
            flight.unique = flight.unique.get()
        assert flight.unique, "expected what dedup returns, got None"
        return flight.unique

    def unite(self, flight: Flight, refused: bool) -> None:
        raise AssertionError("one worker has nobody to unite with")

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        return ()

    def wait_for(self, refused: FirstRefused, stage: str, number: int) -> bool:
        return False

    def after_train(self, staged: Staged) -> None:
        pass


class OtherWorkers:
    """The peers of one of several workers."""

    idle: frozenset[str] = frozenset()
    # Where another worker refused, later blocks may have taken the buffers of earlier ones.
    keeps_reads = False

    def __init__(self, membership: Membership, owners: KeyOwners, num_fields: int, counts_examples: bool) -> None:
        self._membership, self._owners = membership, owners
        self._num_fields, self._counts_examples = num_fields, counts_examples
        self.rank = membership.rank
        self._union = UniteTables()

    def pack(self, flight: Flight) -> None:
        if isinstance(flight.unique, Refusal):
            flight.key_requests = [flight.unique] * self._owners.world
        else:
            unique = expect(Unique, flight.unique)
            flight.key_requests = key_requests(unique, self._owners, self._num_fields, self._counts_examples)

    def key_request(self, flight: Flight | None, owner: int) -> KeyRequest | Refusal | None:
        """Return what another worker is to be sent; None where nobody needs it any more: the block is through, or
        its `dedup` came after a refusal."""
        key_request = flight.key_requests[owner] if flight and flight.key_requests else None
        if owner != self.rank.number and isinstance(key_request, KeyRequest):
            self._membership.group.count("keys", key_request.num_bytes, 1)
        return key_request

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        assert flight.owned_keys, "expected what unite returns, got None"
        return flight.owned_keys

    def unite(self, flight: Flight, refused: bool) -> None:
        if self._membership.key_group:
            stopped = Refusal(flight.block, "pause", STOPPED_ELSEWHERE)
            sent = flight.key_requests or [stopped] * self.rank.world
            flight.received = exchange_keys(flight.block, sent, self._membership.key_group)
        if not refused:
            assert flight.received
            flight.owned_keys = unite(flight.block, flight.received, self._union)
            # Its own requests stay: other workers may not have taken theirs yet.
            flight.received = None

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        refuses = block.number >= refused.here
        weights_K = [0.0] * block.num_batches
        if not refuses:
            assert flight
            weights_K = expect(Examples, flight.examples).batch_weights()
        refusals, *weights_K = self._membership.group.sums([float(refuses), *weights_K])
        return None if refusals else weights_K

    def wait_for(self, refused: FirstRefused, stage: str, number: int) -> bool:
        by_collective = self._membership.key_group is not None
        return (stage == "train" and number <= refused.anywhere) or (stage == "unite" and by_collective)

    def after_train(self, staged: Staged) -> None:
        # `upload` copies from the read buffer, which is another block's once this is through.
        staged.ready.wait()
