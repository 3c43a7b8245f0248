"""Check, before the run, that this machine has enough memory for the caps, and a compiler if one is needed."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline.device.device import Described
from pipeline.machine import limits
from pipeline.machine.compiler import compiler, try_compiler
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.metrics.evaluation import evaluation_bytes
from pipeline.metrics.groups import GROUP_BYTES
from pipeline.settings.caps import Storage
from pipeline.workflow import Workflow

OR_NOT = "or set model.compile to false"


def check_memory(storage: Storage, device: Described, workers: int = 1) -> None:
    """Raises ValueError if the caps exceed this machine's memory or a worker's GPU memory. `storage`: caps per worker,
    the device's in bytes; omitted caps do not count; `workers`: number of workers on this machine."""
    in_ram, there_is = _given_caps(storage), limits.memory()
    if device.on_gpu and (wanted := in_ram.pop("device")) > (free := device.free_bytes()):
        raise ValueError(
            f"storage.device is {format_size_down(wanted)}, and {format_size_down(free)} of the GPU's memory are free; "
            f'lower it to "{format_size_down(free * 4 // 5)}" or less, so that the model has room'
        )
    if (wanted := workers * sum(in_ram.values())) > there_is:
        *names, last = in_ram
        of_all = f" of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.{', '.join(names)} and {last}{of_all} add up to {format_size_up(wanted)}, and this machine has "
            f"{format_size_down(there_is)} within the limits of its control groups; lower one of them"
        )


def _given_caps(storage: Storage) -> dict[str, int]:
    """Caps of memory by name; omitted ones are 0."""
    caps = {name: getattr(storage, name) or 0 for name in ("device", "host", "read", "map")}
    return caps | ({"known": storage.known} if storage.foresees else {})


def check_groups(workflow: Workflow, num_examples: int, storage: Storage, device: Described, workers: int = 1) -> None:
    """Raises ValueError if metrics within groups do not fit into memory next to the caps. `num_examples`: the most
    that are evaluated together; other arguments as for `check_memory`."""
    # Several workers send their parts to the driver, which holds all.
    needed = evaluation_bytes(workflow, num_examples) * (2 if workers > 1 else 1)
    there_is, of = limits.memory(), "this machine"
    if storage.memory is not None and workers == 1:
        there_is, of = storage.memory, "storage.memory"
    of_worker = sum(size for name, size in _given_caps(storage).items() if name != "device" or not device.on_gpu)
    left = there_is - workers * of_worker
    if workflow.metrics.group and needed > left:
        files = "data.train, data.validation" if workflow.metrics.progressive else "data.validation"
        raise ValueError(
            f"metrics.group keeps {GROUP_BYTES} bytes per label of every example of the largest evaluation: "
            f"{num_examples:,} examples need {format_size_up(needed)} of RAM, and {of} has "
            f"{format_size_down(max(0, left))} next to the caps; leave metrics.group out, name fewer files in {files} "
            "and data.test, or lower the caps"
        )


def check_budget(memory: int | None, workers: int) -> None:
    """Raises ValueError if this machine has less memory than its workers may use, `memory` bytes each."""
    there_is = limits.memory()
    if memory is not None and workers * memory > there_is:
        of_all = f" for each of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.memory is {format_size_up(memory)}{of_all}, and this machine has {format_size_down(there_is)}, "
            "limits of control groups counted; lower it, or leave it out for a share of what is free"
        )


def check_compiler(on_gpu: bool) -> None:
    """Raises ValueError if the compiler is missing or does not work. The compiler is needed even if an earlier run has
    cached compiled code, since torch always compiles a small program."""
    if wrong := try_compiler(compiler()):
        raise ValueError(
            f"model.compile needs a C++ compiler with OpenMP and the headers of Python, and {wrong}; install g++ and "
            f"python3-dev, name a compiler with CXX=, {OR_NOT}"
        )
    if on_gpu and find_spec("triton") is None:
        raise ValueError(f"model.compile needs triton on a GPU, which is not installed: pip install triton, {OR_NOT}")
