"""Check before the run that this machine's memory can hold the caps."""

from __future__ import annotations

from pipeline.device.device import Described
from pipeline.machine import limits
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.settings.caps import Storage


def check_memory(storage: Storage, device: Described, workers: int = 1) -> None:
    """Raises ValueError if this machine's memory, or a worker's GPU, cannot hold the caps. `storage`: caps per worker,
    the device's in bytes; those that are left out do not count; `workers`: number of workers on this machine."""
    in_ram = {name: getattr(storage, name) or 0 for name in ("device", "host", "read", "map")}
    if storage.foresees:
        in_ram["known"] = storage.known
    if device.on_gpu and (wanted := in_ram.pop("device")) > (free := device.free_bytes()):
        raise ValueError(
            f"storage.device is {format_size_down(wanted)}, and {format_size_down(free)} of the GPU's memory are free; "
            f'lower it to "{format_size_down(free * 4 // 5)}", so that the model has room, or less'
        )
    there_is = limits.memory()
    if (wanted := workers * sum(in_ram.values())) > there_is:
        *names, last = in_ram
        of_all = f" of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.{', '.join(names)} and {last}{of_all} add up to {format_size_up(wanted)}, and this machine has "
            f"{format_size_down(there_is)}, limits of control groups counted; lower one of them"
        )


def check_budget(memory: int | None, workers: int) -> None:
    """Raises ValueError if this machine has less memory than its workers may take, `memory` bytes each."""
    there_is = limits.memory()
    if memory is not None and workers * memory > there_is:
        of_all = f" for each of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.memory is {format_size_up(memory)}{of_all}, and this machine has {format_size_down(there_is)}, "
            "limits of control groups counted; lower it, or leave it out for a share of what is free"
        )
