"""The place of a worker among several: its rank, and its process groups."""

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
    """Group for key requests, which the thread of `unite` sends; that of `train` uses the others."""
    levels: Collective | None = None
    """The same workers grouped by machine, if the dense part is merged on two levels."""
    on_gpus: Group | None = None
    """Group for the exchanges of training steps between GPUs, as work of the stream `train`. `group` is then used only
    for what hosts agree upon."""

    @property
    def for_steps(self) -> Group:
        """Group for rows and gradients."""
        return self.on_gpus or self.group

    @property
    def collective(self) -> Collective:
        """Collective for the dense part."""
        return self.levels or self.for_steps
