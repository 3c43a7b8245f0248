"""Constants of a machine from which runs are predicted: measured here (`calibrate.py`), or of another machine, in a
TOML file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pipeline.caps import Size
from pipeline.errors import system_text
from pipeline.messages.problems import problems
from pipeline.optimizer import Positive
from pipeline.settings import Amount, Strict


class ComputeRates(Strict):
    """Rates from which the cost of a workflow is computed where it cannot be measured. Those of `read` and `dedup` are
    for one thread."""

    read_seconds_per_value: Positive
    """Seconds of `read` for one number or categorical value: decoding, hashing, shuffling."""
    dedup_seconds_per_value: Positive
    flops_per_second: Positive
    """Floating point operations a second of one worker's dense model in float32, as reached with its layers."""
    bfloat16_flops_per_second: Positive
    memory_bytes_per_second: Positive
    """Bandwidth of the memory that holds the device tier."""
    operation_seconds: Amount
    """Seconds that each operation of the dense model takes in any case, such as the launch of a kernel."""
    beside: Amount = 0.0
    """Seconds by which a block trains longer for each CPU second of the other stages: 0 on a GPU."""


class Machine(Strict):
    """Constants of a machine. Costs in CPU time are those of one thread."""

    name: str
    cores: Annotated[int, Field(ge=1, le=1 << 16)]
    ram: Size
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """GPUs, each of which one worker uses; 0: workers train on the CPU."""
    gpu_memory: Size = 0
    """Memory of each GPU that is free for the device tier and the dense model."""
    price_per_hour: Amount | None = None
    """Price of an hour, in any currency; None: unknown."""
    scattered_read_seconds: Positive
    """Time that one more scattered read of a page costs while many are in flight (`DiskSpeed`)."""
    disk_read_bytes_per_second: Positive
    disk_write_bytes_per_second: Positive
    """Throughput of chunk files with their checksums, without the time of `fsync_seconds`."""
    fsync_seconds: Amount
    """Seconds that each file takes until it is durable, however short it is."""
    cached_read_seconds: Positive
    """CPU seconds of one row that is read from the page cache."""
    copy_bytes_per_second: Positive
    """Bytes of scattered rows that one thread copies in a second."""
    map_call_seconds: Amount
    """Seconds of a call of the key map, however few the keys."""
    find_seconds: Positive
    """Seconds of a key that is looked up in a key map of a million keys."""
    insert_seconds: Positive
    """Seconds of a new key in the key map, its growth included."""
    victim_seconds: Positive
    """Seconds of a slot that `plan` looks at to choose victims."""
    block_seconds: Amount
    """CPU seconds of a block's empty tasks under Dask."""
    dask_bytes: Size
    """RAM that Dask takes in a process."""
    process_bytes: Size
    """RAM of a process with all libraries, before it opens a run."""
    link_bytes_per_second: Positive | None = None
    """Throughput of copies between host and GPU, in each direction; None without a GPU."""
    network_bytes_per_second: Positive
    """Throughput between two workers, in each direction."""
    message_seconds: Amount
    """Seconds of a small message from one worker to another."""
    rates: ComputeRates | None = None
    """Rates of computing; None: the workflow's cost is measured on this machine."""

    @property
    def workers(self) -> int:
        """Number of workers if the user gives none: one for each GPU."""
        return max(1, self.gpus)


class DeviceElsewhere:
    """Device of a worker on a machine that is not here."""

    def __init__(self, machine: Machine, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self._free_bytes = machine.gpu_memory if on_gpu else machine.ram

    def free_bytes(self) -> int:
        return self._free_bytes


def load_machine(path: Path) -> Machine:
    """Load the constants of a machine from a TOML file. Raises ValueError, with the file, the field and the value, if
    it is not one."""
    try:
        fields = tomllib.loads(path.read_text())
        machine = Machine.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as error:
        raise ValueError(
            "\n       ".join(f"--on {path}: {found.text}" for found in problems(error, in_json=True))
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"--on {path} cannot be read: {system_text(error) or error}") from error
    if machine.rates is None:
        raise ValueError(
            f"--on {path}: Machine needs 'rates', from which the cost of a workflow is computed; see workflows/machines"
        )
    if machine.gpus and not (machine.gpu_memory and machine.link_bytes_per_second):
        raise ValueError(
            f"--on {path}: gpus is {machine.gpus}, so Machine needs 'gpu_memory' and 'link_bytes_per_second', too"
        )
    return machine
