"""The membership of a worker in a run with several: its rank and its process groups."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.comm.collective import Collective
from pipeline.comm.group import Group
from pipeline.records import Rank


@dataclass(frozen=True, slots=True)
class Membership:
    """Rank, shard owners and process groups of one of several workers."""

    rank: Rank
    owner_of_shard: tuple[int, ...]
    """Rank of the owner of each shard of the table."""
    group: Group
    key_group: Group
    """Group for key requests, used by the thread of `unite`; the thread of `train` uses the other groups."""
    levels: Collective | None = None
    """The same workers grouped by machine, if the dense part is merged on two levels."""
    on_gpus: Group | None = None
    """Group for the exchanges of training steps between GPUs, queued on the stream `train`. `group` is then used only
    for agreement between hosts."""

    @property
    def for_steps(self) -> Group:
        """Group for rows and gradients."""
        return self.on_gpus or self.group

    @property
    def collective(self) -> Collective:
        """Collective for the dense part."""
        return self.levels or self.for_steps
