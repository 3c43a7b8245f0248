"""Whether workers can take part in a run, by what they say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cluster.member import Machine
from pipeline.stages import STAGES
from pipeline.workflow import Workflow

LEAST_THREADS = 4
"""One for `train`, one for keys by mail, one for what the driver asks, and one that goes on."""
SHARE_OF_LIMIT = 0.6
"""Of Dask's limit: above, it would spill, pause or end the worker."""


def check_machines(machines: Sequence[Machine], workflow: Workflow) -> None:
    """ValueError, which names the worker, where one cannot take part."""
    for rank, machine in enumerate(machines):
        for package, version in machine.versions.items():
            if version != machines[0].versions[package]:
                raise ValueError(
                    f"worker {rank} on {machine.host} has {package} {version}, and worker 0 "
                    f"{machines[0].versions[package]}: install the same everywhere"
                )
        if machine.threads < LEAST_THREADS:
            raise ValueError(
                f"worker {rank} on {machine.host} has {machine.threads} threads, and what waits for others takes "
                f"{LEAST_THREADS - 1}; start it with --nthreads {len(STAGES) + 4}, or {LEAST_THREADS} at least"
            )
        storage = workflow.storage
        in_ram = sum(
            size for size in (storage.device, storage.host, storage.read, storage.map) if isinstance(size, int)
        )
        if machine.memory_limit and in_ram > SHARE_OF_LIMIT * machine.memory_limit:
            raise ValueError(
                f"worker {rank} on {machine.host} has a memory limit of {machine.memory_limit:,} bytes, and storage's "
                f"device, host, read and map add up to {in_ram:,}: more than {SHARE_OF_LIMIT:.0%} of it; lower them, "
                "or start the worker without a limit (--memory-limit 0)"
            )
