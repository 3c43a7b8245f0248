"""What the scaling model is asked about: a model and its data, measured constants, machines and their links, a run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scaling.zipf import Fields


@dataclass(frozen=True)
class Shape:
    """A model and its data."""

    name: str
    fields: tuple[Fields, ...]
    dense: int
    """Parameters of the dense part."""
    dim: int
    """Weights of a row: what is sent of it, and as many gradients come back."""
    row_bytes: int
    """A whole row, as tiers move it: key, weights, optimizer state, counters."""
    exponent: float = 1.05

    @property
    def nnz(self) -> int:
        """Values of an example."""
        return sum(one.number for one in self.fields)


@dataclass(frozen=True)
class Costs:
    """Measured constants. Nanoseconds of one thread, but for what a GPU computes (`Cluster.on_gpu`): of the GPU."""

    value_read_ns: float
    """Per value: decode, hash, shuffle. Always the processor's."""
    value_deduplicated_ns: float
    """Per value."""
    key_planned_ns: float
    """Per unique key of a block. Always the processor's."""
    value_trained_ns: float
    """Per value: its row looked up for the model, its gradient summed."""
    row_trained_ns: float
    """Per unique key of a step, at its owner: the optimizer."""
    row_exchanged_ns: float
    """Per row sent, and once more per gradient received: gathered, and added."""
    example_trained_ns: float
    """Per example: what forward and backward cost whatever the size."""
    parameter_trained_ns: float
    """Per example and dense parameter, forward and backward: 6 floating-point operations."""
    step_s: float
    """Seconds per step, whatever it holds: launches, Python."""


@dataclass(frozen=True)
class Link:
    bytes_per_s: float
    """Of one worker, in one direction; both directions at once."""
    latency_s: float
    """Per message."""
    on_cores: bool = False
    """The processor moves the bytes (gloo), so that their time counts as its time."""


@dataclass(frozen=True)
class Cluster:
    machines: int
    workers: int
    """Of one machine."""
    cores: float
    """Of one machine."""
    threads: int
    """Of `read`, and of `dedup` and `train` without a GPU: at most a worker's cores."""
    on_gpu: bool
    inside: Link
    between: Link
    source_bytes_per_s: float
    """Of one machine: where the data is read from."""
    disk_bytes_per_s: float
    """Of one machine, reading; writing is as fast, at the same time."""
    upload_bytes_per_s: float
    """Of one worker, in one direction: to the device and back. Without a GPU nothing is uploaded."""
    device_rows: float
    """Of one worker."""
    host_rows: float
    """Of one worker, besides those on the device."""

    @property
    def num_workers(self) -> int:
        return self.machines * self.workers


@dataclass(frozen=True)
class Run:
    batch: int
    """Examples of a step, of all workers together."""
    block_batches: int = 16
    inside_every: int = 1
    """Steps between dense synchronizations of a machine's workers; 1: gradients are all-reduced at every step."""
    between_every: int = 1
    """Steps between those of workers of the same index in all machines: k of k-step Adam."""
    words: int = 1
    """Sent for each parameter when merging: 1 (gradients, or x), 2 (x, v), 3 (x, m, v)."""
