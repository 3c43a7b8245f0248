"""The membership of a worker that is one of several."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.comm.collective import Collective
from pipeline.comm.group import Group
from pipeline.records import Rank


@dataclass(frozen=True, slots=True)
class Membership:
    """Everything that makes a worker one of several."""

    rank: Rank
    owner_of_shard: tuple[int, ...]
    """Rank of the worker that has each shard of the table."""
    group: Group
    levels: Collective | None = None
    """The same workers as machines of some each, if the dense part is merged on two levels."""
    key_group: Group | None = None
    """For keys, if they do not come as tasks."""
    on_gpus: Group | None = None
    """For what steps exchange, where that lies in the memory of GPUs: work of the stream `train`. `group` is then for
    what the hosts agree upon."""

    @property
    def for_steps(self) -> Group:
        """For rows and gradients."""
        return self.on_gpus or self.group

    @property
    def collective(self) -> Collective:
        """For the dense part."""
        return self.levels or self.for_steps
