"""A run's claim to the workers of the user's scheduler, on which there can be one run at a time."""

from __future__ import annotations

import os
import platform
from typing import Any

from distributed import Client

from pipeline.cluster.awake import in_time


class ClusterInUse(ValueError):
    """Raised if another run has the workers of a scheduler; names that run."""


def claim_workers(client: Client, scheduler: str, run: str) -> None:
    """Take the workers of a scheduler for a run, for as long as the scheduler has this client: a driver that is killed
    loses them with its connection. `run`: its name and folder. Raises ClusterInUse if another run has them."""

    # A nested function is pickled by value, so the scheduler's process need not have this package. Its event loop runs
    # it as a whole, so that of two runs that begin at once one is the first.
    def claim(client: str, run: str, dask_scheduler: Any) -> str | None:
        owner, owned_by = dask_scheduler.task_metadata.get("pipeline", (client, run))
        if owner != client and owner in dask_scheduler.clients:
            return str(owned_by)
        dask_scheduler.task_metadata["pipeline"] = client, run
        return None

    whose = f"{run}, process {os.getpid()} on {platform.node()}"
    what = "asking the scheduler whether another run has its workers"
    if other := in_time(what, lambda: client.run_on_scheduler(claim, client.id, whose)):
        raise ClusterInUse(
            f"--scheduler {scheduler}: its workers train {other}; wait for that run to end, or give this one another "
            "cluster"
        )
