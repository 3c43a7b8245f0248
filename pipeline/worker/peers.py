"""The part of other workers in a block: keys that are asked for, what all agree upon. One worker has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.comm.key_exchange import exchange
from pipeline.records import Block, Examples, Parcel, Refusal, Share, Staged, Unique, United
from pipeline.stages.dedup import Owners
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.stages.unite import STOPPED_ELSEWHERE, Union, parcels, unite
from pipeline.worker.flight import Flight, of
from pipeline.worker.member import Member


@dataclass(slots=True)
class Refused:
    """Numbers of blocks; of a stretch."""

    here: int
    """The first that this worker has refused."""
    anywhere: int
    """The first that any has: nobody trains on it or on later ones."""


class Peers(Protocol):
    idle: frozenset[str]
    """Stages that have nothing to do."""
    share: Share
    keeps_reads: bool
    """Whether blocks that were read before a refusal lie in their buffers still."""

    def pack(self, flight: Flight) -> None:
        """Make the parcels for others of what `dedup` found."""

    def take(self, flight: Flight) -> Unique | United | Refusal:
        """The working set that `plan` decides on, for which it may have to wait."""

    def unite(self, flight: Flight, refused: bool) -> None:
        """Put together what all workers sent; only the sending is to be done where the block was `refused`."""

    def agree(self, block: Block, flight: Flight | None, refused: Refused) -> Sequence[float] | None:
        """Return what the examples of each whole batch weigh, if all workers have planned the block. Else None, and
        nobody trains on it or on later ones; those who have planned them move their rows."""

    def wait_for(self, refused: Refused, stage: str, number: int) -> bool:
        """Return whether others wait in a collective of this stage, though here the block was refused."""

    def after_train(self, staged: Staged) -> None:
        """The block's steps were given to the device."""


class NoPeers:
    idle, share, keeps_reads = frozenset({"unite"}), Share(), True

    def pack(self, flight: Flight) -> None:
        pass

    def take(self, flight: Flight) -> Unique | United | Refusal:
        if isinstance(flight.unique, Pending):
            flight.unique = flight.unique.get()
        assert flight.unique, "expected what dedup returns, got None"
        return flight.unique

    def unite(self, flight: Flight, refused: bool) -> None:
        raise AssertionError("one worker has nobody to unite with")

    def agree(self, block: Block, flight: Flight | None, refused: Refused) -> Sequence[float] | None:
        return ()

    def wait_for(self, refused: Refused, stage: str, number: int) -> bool:
        return False

    def after_train(self, staged: Staged) -> None:
        pass


class Others:
    """The peers of one of several workers."""

    idle: frozenset[str] = frozenset()
    # Where another worker refused, later blocks may have taken the buffers of earlier ones.
    keeps_reads = False

    def __init__(self, member: Member, owners: Owners, num_fields: int, counts_holders: bool) -> None:
        self._member, self._owners = member, owners
        self._num_fields, self._counts_holders = num_fields, counts_holders
        self.share = member.share
        self._union = Union()

    def pack(self, flight: Flight) -> None:
        if isinstance(flight.unique, Refusal):
            flight.parcels = [flight.unique] * self._owners.world
        else:
            unique = of(Unique, flight.unique)
            flight.parcels = parcels(unique, self._owners, self._num_fields, self._counts_holders)

    def parcel(self, flight: Flight | None, owner: int) -> Parcel | Refusal | None:
        """Return what another worker is to be sent; None where nobody needs it any more: the block is through, or
        its `dedup` came after a refusal."""
        parcel = flight.parcels[owner] if flight and flight.parcels else None
        if owner != self.share.rank and isinstance(parcel, Parcel):
            self._member.group.count("keys", parcel.num_bytes, 1)
        return parcel

    def take(self, flight: Flight) -> Unique | United | Refusal:
        assert flight.united, "expected what unite returns, got None"
        return flight.united

    def unite(self, flight: Flight, refused: bool) -> None:
        if self._member.mail:
            stopped = Refusal(flight.block, "pause", STOPPED_ELSEWHERE)
            sent = flight.parcels or [stopped] * self.share.world
            flight.received = exchange(flight.block, sent, self._member.mail)
        if not refused:
            assert flight.received
            flight.united = unite(flight.block, flight.received, self._union)
            # Its parcels stay: other workers may not have taken theirs yet.
            flight.received = None

    def agree(self, block: Block, flight: Flight | None, refused: Refused) -> Sequence[float] | None:
        refuses = block.number >= refused.here
        weights_K = [0.0] * block.num_batches
        if not refuses:
            assert flight
            weights_K = of(Examples, flight.examples).batch_weights()
        refusals, *weights_K = self._member.group.sums([float(refuses), *weights_K])
        return None if refusals else weights_K

    def wait_for(self, refused: Refused, stage: str, number: int) -> bool:
        by_mail = self._member.mail is not None
        return (stage == "train" and number <= refused.anywhere) or (stage == "unite" and by_mail)

    def after_train(self, staged: Staged) -> None:
        # `upload` copies from the read buffer, which is another block's once this is through.
        staged.ready.wait()
