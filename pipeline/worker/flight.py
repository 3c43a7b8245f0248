"""Blocks in flight, and the lengths of the buffer rings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.records import Block, Examples, KeyRequest, OwnedKeys, Plan, Refusal, Staged, Trained, Unique
from pipeline.stages.dedup_on_gpu import Pending

T = TypeVar("T")


@dataclass(slots=True)
class Flight:
    """A block in flight, with the record returned by each stage; None until the stage has run."""

    block: Block
    examples: Examples | Refusal | None = None
    unique: Unique | Pending | Refusal | None = None
    key_requests: Sequence[KeyRequest | Refusal] | None = None
    """With several workers: key requests to each owner, in rank order, until they are sent."""
    owned_keys: OwnedKeys | Refusal | None = None
    plan: Plan | Refusal | None = None
    staged: Staged | None = None
    trained: Trained | None = None


def read_already(flights: Mapping[int, Flight], blocks: Mapping[int, Block]) -> dict[int, Flight]:
    """Return the blocks of a new stretch that are still in their read buffers: those that were read, perhaps
    deduplicated, and then refused."""
    kept = (flight for flight in flights.values() if blocks.get(flight.block.number) == flight.block)
    return {flight.block.number: Flight(flight.block, flight.examples, flight.unique) for flight in kept}


def expect(kind: type[T], record: object) -> T:
    """Return `record`, which must be of type `kind`. The edges of the schedule and the refusals guarantee that the
    stage that makes it has run."""
    assert isinstance(record, kind), f"expected {kind.__name__}, got {type(record).__name__}"
    return record


@dataclass(frozen=True, slots=True)
class RingLengths:
    """Number of buffers in each ring: the minimum that the edges of the schedule allow."""

    read: int
    staging: int
    outgoing: int

    @classmethod
    def of(cls, look_ahead: int) -> RingLengths:
        return cls(2 * look_ahead + 1, look_ahead + 1, look_ahead + 1)
