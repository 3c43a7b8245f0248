"""A block on its way, and how long rings are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.records import Block, Examples, KeyRequest, OwnedKeys, Plan, Refusal, Staged, Trained, Unique
from pipeline.stages.dedup_on_gpu import Pending

T = TypeVar("T")


@dataclass(slots=True)
class Flight:
    """One block on its way: what its stages returned, None until they have."""

    block: Block
    examples: Examples | Refusal | None = None
    unique: Unique | Pending | Refusal | None = None
    key_requests: Sequence[KeyRequest | Refusal] | None = None
    """Keys that each of several workers is sent."""
    received: Sequence[KeyRequest | Refusal | None] | None = None
    """Keys that each of them has sent."""
    owned_keys: OwnedKeys | Refusal | None = None
    plan: Plan | Refusal | None = None
    staged: Staged | None = None
    trained: Trained | None = None


def expect(kind: type[T], record: object) -> T:
    """A record that must be of this kind by now: the schedule's edges, and `plan`'s refusals, see to it."""
    assert isinstance(record, kind), f"expected {kind.__name__}, got {type(record).__name__}"
    return record


@dataclass(frozen=True, slots=True)
class RingLengths:
    """Buffers of each ring. The schedule's edges allow no fewer."""

    read: int
    staging: int
    outgoing: int

    @classmethod
    def of(cls, look_ahead: int) -> RingLengths:
        return cls(2 * look_ahead + 1, look_ahead + 1, look_ahead + 1)
