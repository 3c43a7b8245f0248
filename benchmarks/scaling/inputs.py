"""Inputs of the scaling model: a model and its data, measured constants, machines and their links, a run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cases import CARDINALITIES
from benchmarks.scaling.zipf import Fields


@dataclass(frozen=True)
class Shape:
    """A model and its data."""

    name: str
    fields: tuple[Fields, ...]
    dense: int
    """Number of parameters of the dense part."""
    dim: int
    """Number of weights of a row. These are sent, and the same number of gradients is returned."""
    row_bytes: int
    """Size in bytes of a whole row, as tiers move it: key, weights, optimizer state, counters."""
    exponent: float = 1.05

    @property
    def nnz(self) -> int:
        """Number of values per example."""
        return sum(one.number for one in self.fields)


@dataclass(frozen=True)
class Costs:
    """Measured constants in nanoseconds of one thread, or of the GPU for the work that it does (`Cluster.on_gpu`)."""

    value_read_ns: float
    """Per value: decode, hash, shuffle; always on the CPU."""
    value_deduplicated_ns: float
    """Per value."""
    key_planned_ns: float
    """Per unique key of a block; always on the CPU."""
    value_trained_ns: float
    """Per value: look up its row for the model, and sum its gradient."""
    row_trained_ns: float
    """Per unique key of a step, at its owner: the optimizer's update."""
    row_exchanged_ns: float
    """Per row sent (gather), and again per gradient received (add)."""
    example_trained_ns: float
    """Per example: the part of forward and backward that does not depend on the number of parameters."""
    parameter_trained_ns: float
    """Per example and dense parameter, forward and backward: 6 floating-point operations."""
    step_s: float
    """Seconds per step, independent of its size: launches, Python."""


@dataclass(frozen=True)
class Link:
    bytes_per_s: float
    """Bandwidth of one worker in one direction; both directions work concurrently."""
    latency_s: float
    """Seconds per message."""
    on_cores: bool = False
    """True if the CPU moves the bytes (gloo), so that their time counts as CPU time."""


@dataclass(frozen=True)
class Cluster:
    machines: int
    workers: int
    """Workers of one machine."""
    cores: float
    """Cores of one machine."""
    threads: int
    """Threads of `read`, and of `dedup` and `train` without a GPU: at most a worker's cores."""
    on_gpu: bool
    inside: Link
    between: Link
    source_bytes_per_s: float
    """Speed at which one machine reads the data."""
    disk_bytes_per_s: float
    """Speed at which one machine reads its log; it concurrently writes at the same speed."""
    upload_bytes_per_s: float
    """Speed of one worker's copies to and from the device, per direction. Without a GPU nothing is uploaded."""
    device_rows: float
    """Number of rows on the device of one worker."""
    host_rows: float
    """Number of rows in the host tier of one worker, in addition to those on the device."""

    @property
    def num_workers(self) -> int:
        return self.machines * self.workers


@dataclass(frozen=True)
class Run:
    batch: int
    """Number of examples per step over all workers."""
    block_batches: int = 16
    inside_every: int = 1
    """Steps between dense synchronizations of a machine's workers; 1: gradients are all-reduced at every step."""
    between_every: int = 1
    """Steps between dense synchronizations of workers with the same index on all machines: k of k-step Adam."""
    words: int = 1
    """Numbers sent per parameter in a merge: 1 (gradients, or x), 2 (x, v), 3 (x, m, v)."""


CRITEO = Shape("Criteo", tuple(Fields(keys, 1) for keys in CARDINALITIES), 27_000, 17, 224)
"""Trace of `end_to_end`, with DeepFM, D = 16 and an MLP of 64."""
TWO_CORES = Costs(
    value_read_ns=6,
    value_deduplicated_ns=5,
    key_planned_ns=230,
    value_trained_ns=32,
    row_trained_ns=45,
    row_exchanged_ns=20,
    example_trained_ns=2_000,
    parameter_trained_ns=0.07,
    step_s=0.0,
)
"""Constants of two cores (Zen 5, 2026-11-20), from the times of stages and kernels; `row_exchanged_ns` from gathers and
sums."""
MACHINE = Cluster(
    machines=1, workers=8, cores=112, threads=4, on_gpu=True, inside=Link(300e9, 10e-6), between=Link(1e9, 20e-6),
    source_bytes_per_s=8e9, disk_bytes_per_s=30e9, upload_bytes_per_s=20e9, device_rows=4e8, host_rows=1e9,
)  # fmt: skip
"""An assumed machine with 8 GPUs. Each test changes the properties that it examines."""
