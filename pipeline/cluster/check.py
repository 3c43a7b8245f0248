"""Checks, based on the `WorkerInfo` of workers, that they can take part in a run."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cluster.run_plugin import WorkerInfo
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.preflight.sizes import Sizes, log_chunk_bytes
from pipeline.settings.caps import CapSizes
from pipeline.stages import STAGES
from pipeline.storage.chunks import max_chunks
from pipeline.storage.places import max_rows

MIN_THREADS = 4
"""Minimum number of threads of a Dask worker. Up to three tasks may wait for other workers at the same time (`train`,
`unite`, a call from the driver), and one more thread must be free to make progress."""
SHARE_OF_LIMIT = 0.6
"""Share of Dask's memory limit above which Dask would spill, pause or end the worker."""


def min_disk_bytes(sizes: Sizes, num_owned: int) -> int:
    """Bytes that a worker with `num_owned` shards reserves on its disk from the start: a commit of all rows that fit on
    device and host."""
    rows = max_rows(sizes.device_rows + sizes.host_rows, sizes.map_bytes)
    return max_chunks(rows, sizes.chunk_rows, num_owned) * log_chunk_bytes(sizes.chunk_rows, sizes.row_bytes)


def check_machines(machines: Sequence[WorkerInfo], device: str, storage: CapSizes, min_disk_bytes: int = 0) -> None:
    """Raises ValueError, which names the worker, if a worker cannot take part. `device`: the setting of the workflow;
    `storage`: the caps per worker, that of the device in bytes; `min_disk_bytes`: free disk space that each worker
    needs."""
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
                f"worker {rank} on {machine.host} has {machine.threads} threads, and {MIN_THREADS - 1} may wait for "
                f"other workers; start it with --nthreads {len(STAGES) + 4}, or at least {MIN_THREADS}"
            )
        in_ram = caps_in_ram(machine, storage)
        if machine.memory_limit and in_ram > SHARE_OF_LIMIT * machine.memory_limit:
            most = format_size_down(int(SHARE_OF_LIMIT * machine.memory_limit))
            raise ValueError(
                f"worker {rank} on {machine.host} has a memory limit of {format_size_down(machine.memory_limit)}, and "
                f"storage's {names_in_ram(machine, storage)} add up to {format_size_up(in_ram)}, which is more "
                f"than {SHARE_OF_LIMIT:.0%} of it; lower their sum to {most}, or start the worker without a limit "
                "(--memory-limit 0)"
            )


def caps_in_ram(machine: WorkerInfo, storage: CapSizes) -> int:
    """RAM, in bytes, that the caps of a worker allow it to use."""
    device = 0 if machine.gpu else storage.device
    return device + storage.host + storage.read + storage.map + storage.known_bytes


def names_in_ram(machine: WorkerInfo, storage: CapSizes) -> str:
    known = ", known" if storage.foresees else ""
    return f"{'' if machine.gpu else 'device, '}host{known}, read and map"


def check_workers_memory(machines: Sequence[WorkerInfo], storage: CapSizes) -> None:
    """Raises ValueError if the caps of all workers on the same machine, or in the same control group, exceed its
    memory."""
    for rank, machine in enumerate(machines):
        for group, there_is in machine.memory.items():
            sharing = [other for other in machines if other.host == machine.host and group in other.memory]
            wanted = sum(caps_in_ram(other, storage) for other in sharing)
            if wanted > there_is:
                each = format_size_down(there_is // len(sharing))
                whose = "its control group may have" if group else "its machine has"
                raise ValueError(
                    f"worker {rank} on {machine.host}: storage's {names_in_ram(machine, storage)} of {len(sharing)} "
                    f"worker{'s' * (len(sharing) > 1)} there add up to {format_size_up(wanted)}, and {whose} "
                    f"{format_size_down(there_is)}; lower them to {each} a worker, or start fewer workers there"
                )


def check_devices(machines: Sequence[WorkerInfo], device: str) -> None:
    """Raises ValueError unless all workers train on CPUs, or each on its own GPU."""
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
    """Raises ValueError if a disk has too little free space for all workers of its machine that share it."""
    for rank, machine in enumerate(machines):
        sharing = sum(other.host == machine.host and other.disk == machine.disk for other in machines)
        if machine.free_bytes < sharing * min_bytes:
            raise ValueError(
                f"worker {rank} on {machine.host} has {format_size_down(machine.free_bytes)} free on the disk of "
                f"the run directory, and one whole commit of {sharing} worker{'s' * (sharing > 1)} there takes "
                f"{format_size_up(sharing * min_bytes)}; make room, or lower storage.device or storage.host"
            )
