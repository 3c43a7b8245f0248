"""What `Resources` is told once: a block on its way, how long rings are, and what makes a worker one of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.comm.collective import Collective
from pipeline.comm.group import Group
from pipeline.records import Block, Share


@dataclass(slots=True)
class Flight:
    """One block on its way: the records that its stages returned."""

    block: Block
    examples: Any = None
    unique: Any = None
    parcels: Any = None
    received: Any = None
    united: Any = None
    plan: Any = None
    staged: Any = None
    trained: Any = None


@dataclass(frozen=True, slots=True)
class RingLengths:
    """Buffers of each ring. The schedule's edges allow no fewer."""

    read: int
    staging: int
    outgoing: int

    @classmethod
    def of(cls, look_ahead: int) -> RingLengths:
        return cls(2 * look_ahead + 1, look_ahead + 1, look_ahead + 1)


@dataclass(frozen=True, slots=True)
class Member:
    """What makes a worker one of several."""

    share: Share
    owner_of_shard: tuple[int, ...]
    """Rank of the worker that has each shard of the table."""
    group: Group
    levels: Collective | None = None
    """The same workers as machines of some each, if the dense part is merged on two levels."""
    mail: Group | None = None
    """For keys, if they do not come as tasks."""
    on_gpus: Group | None = None
    """For what steps exchange, where that lies in the memory of GPUs: work of the stream `train`. `group` is then for
    what the hosts agree upon."""

    @property
    def of_steps(self) -> Group:
        """For rows and gradients."""
        return self.on_gpus or self.group

    @property
    def collective(self) -> Collective:
        """For the dense part."""
        return self.levels or self.of_steps
