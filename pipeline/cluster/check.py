"""Checks whether workers can take part in a run, by what they say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cluster.run_plugin import WorkerInfo
from pipeline.preflight.sizes import Sizes, log_chunk_bytes
from pipeline.stages import STAGES
from pipeline.storage.chunks import max_chunks
from pipeline.storage.places import max_rows
from pipeline.workflow import Storage

MIN_THREADS = 4
"""One for `train`, one for `unite`, one for what the driver asks, and one that goes on."""
SHARE_OF_LIMIT = 0.6
"""The share of Dask's limit above which it would spill, pause or end the worker."""


def min_disk_bytes(sizes: Sizes, num_owned: int) -> int:
    """Return what a worker of so many shards holds free on its disk from the start: for a commit of all that device
    and host can hold."""
    rows = max_rows(sizes.device_rows + sizes.host_rows, sizes.map_bytes)
    return max_chunks(rows, sizes.chunk_rows, num_owned) * log_chunk_bytes(sizes.chunk_rows, sizes.row_bytes)


def check_machines(machines: Sequence[WorkerInfo], device: str, storage: Storage, min_disk_bytes: int = 0) -> None:
    """ValueError, which names the worker, where one cannot take part. `device`: what the workflow asks for; `storage`:
    the caps of each, the device's in bytes; `least_disk_bytes`: of each."""
    check_devices(machines, device)
    check_disks(machines, min_disk_bytes)
    check_workers_memory(machines, storage)
    for rank, machine in enumerate(machines):
        for package, version in machine.versions.items():
            if version != machines[0].versions[package]:
                raise ValueError(
                    f"worker {rank} on {machine.host} has {package} {version}, and worker 0 "
                    f"{machines[0].versions[package]}: install the same everywhere"
                )
        if machine.threads < MIN_THREADS:
            raise ValueError(
                f"worker {rank} on {machine.host} has {machine.threads} threads, and what waits for others takes "
                f"{MIN_THREADS - 1}; start it with --nthreads {len(STAGES) + 4}, or {MIN_THREADS} at least"
            )
        in_ram = caps_in_ram(machine, storage)
        if machine.memory_limit and in_ram > SHARE_OF_LIMIT * machine.memory_limit:
            raise ValueError(
                f"worker {rank} on {machine.host} has a memory limit of {machine.memory_limit:,} bytes, and storage's "
                f"{names_in_ram(machine)} add up to {in_ram:,}: more than {SHARE_OF_LIMIT:.0%} of it; lower them, or "
                "start the worker without a limit (--memory-limit 0)"
            )


def caps_in_ram(machine: WorkerInfo, storage: Storage) -> int:
    """Bytes that a worker's caps take of its machine's RAM."""
    return (0 if machine.gpu else storage.device_bytes) + storage.host + storage.read + storage.map


def names_in_ram(machine: WorkerInfo) -> str:
    return f"{'' if machine.gpu else 'device, '}host, read and map"


def check_workers_memory(machines: Sequence[WorkerInfo], storage: Storage) -> None:
    """Workers of a machine share its RAM, and those of a control group what that may have."""
    for rank, machine in enumerate(machines):
        for group, there_is in machine.memory.items():
            sharing = [other for other in machines if other.host == machine.host and group in other.memory]
            wanted = sum(caps_in_ram(other, storage) for other in sharing)
            if wanted > there_is:
                whose = "its control group may have" if group else "its machine has"
                raise ValueError(
                    f"worker {rank} on {machine.host}: storage's {names_in_ram(machine)} of {len(sharing)} "
                    f"worker{'s' * (len(sharing) > 1)} there add up to {wanted:,} bytes, and {whose} {there_is:,}; "
                    "lower one of them, or start fewer workers there"
                )


def check_devices(machines: Sequence[WorkerInfo], device: str) -> None:
    """All workers train on CPUs, or each on a GPU of its own."""
    taken: dict[tuple[str, str], int] = {}
    for rank, machine in enumerate(machines):
        if bool(machine.gpu) != {"cuda": True, "cpu": False}.get(device, bool(machines[0].gpu)):
            raise ValueError(
                f"worker {rank} on {machine.host} has {machine.device if machine.gpu else 'no GPU that CuPy sees'}, "
                f"worker 0 {machines[0].device}, and device is {device}: give each a GPU, or set device to cpu"
            )
        other = taken.setdefault((machine.host, machine.gpu), rank)
        if machine.gpu and other != rank:
            raise ValueError(
                f"workers {other} and {rank} on {machine.host} have the same GPU, {machine.gpu}: start one for each "
                "(`dask cuda worker` does), or give each its own CUDA_VISIBLE_DEVICES"
            )


def check_disks(machines: Sequence[WorkerInfo], min_bytes: int) -> None:
    """Workers of a machine may share a disk."""
    for rank, machine in enumerate(machines):
        sharing = sum(other.host == machine.host and other.disk == machine.disk for other in machines)
        if machine.free_bytes < sharing * min_bytes:
            raise ValueError(
                f"worker {rank} on {machine.host} has {machine.free_bytes:,} bytes free on the disk of the run "
                f"directory, and one whole commit of {sharing} worker{'s' * (sharing > 1)} there takes "
                f"{sharing * min_bytes:,}; make room, or lower storage.device or storage.host"
            )
