"""Model of the examples per second that N workers train, from bytes, links and measured constants; nothing is fitted.

Concurrent activities (reading, dedup, planning, sending keys, disk, copies to a device, training) are parts, in seconds
per step; the slowest part determines the speed. Within training, the exchange of rows and gradients and the dense
synchronization add to the computation. The CPU time of all parts divided by a worker's cores is also a part.

The model omits waiting for the slowest worker, a cold start, commits and evaluation. So it is an upper bound, and
measured speeds should be below it by the cost of those (`check`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.scaling.inputs import Cluster, Costs, Link, Run, Shape
from benchmarks.scaling.zipf import unique_keys

VALUE_BYTES = 8
KEY_BYTES = 8
WORD_BYTES = 4
"""Bytes of a weight, a gradient, a count, or a dense parameter."""
PAGE_BYTES = 4_096
"""Bytes that a disk reads for a single row."""


class Bytes(NamedTuple):
    """Bytes that one worker sends per step, as its counters count them: payload, each byte counted once."""

    read: float
    keys: float
    rows: float
    gradients: float
    dense: float


class Prediction(NamedTuple):
    examples_per_s: float
    binds: str
    """Name of the slowest part."""
    parts: dict[str, float]
    """Seconds per step of each part."""
    sent: Bytes


def bytes_sent(shape: Shape, cluster: Cluster, run: Run) -> Bytes:
    """Bytes per step and worker. Rows are sent for the unique keys of a worker's part that it does not own."""
    examples, num_workers = run.batch / cluster.num_workers, cluster.num_workers
    remote = unique_keys(shape.fields, shape.exponent, examples) * (num_workers - 1) / num_workers
    weights = WORD_BYTES * shape.dim
    inside = _words(run.inside_every, run.words) / run.inside_every if cluster.workers > 1 else 0.0
    between = run.words / run.between_every / cluster.workers if cluster.machines > 1 else 0.0
    return Bytes(
        read=VALUE_BYTES * shape.nnz * examples,
        keys=KEY_BYTES * remote,
        rows=weights * remote,
        # Each gradient is sent with its count of examples.
        gradients=(weights + WORD_BYTES) * remote,
        dense=WORD_BYTES * shape.dense * (inside + between),
    )


def predict(shape: Shape, costs: Costs, cluster: Cluster, run: Run) -> Prediction:
    """Predict the total examples per second of all workers, with the slowest part and the seconds of all parts."""
    sent = bytes_sent(shape, cluster, run)
    moved = _moves(shape, cluster, run)
    work = _work(shape, costs, cluster, run)
    exchange = sum(_all_to_all(cluster, num_bytes) for num_bytes in (sent.rows, sent.gradients))
    dense = _all_reduce(shape, cluster, run)
    keys = _all_to_all(cluster, sent.keys)
    parts = {
        "read": work["read"] / cluster.threads,
        "source": sent.read * cluster.workers / cluster.source_bytes_per_s,
        "dedup": work["dedup"] / (1 if cluster.on_gpu else cluster.threads),
        "plan": work["plan"],
        "keys": keys,
        "disk": moved["disk"] * cluster.workers * PAGE_BYTES / cluster.disk_bytes_per_s,
        "upload": moved["device"] * shape.row_bytes / cluster.upload_bytes_per_s if cluster.on_gpu else 0.0,
        "train": work["train"] / (1 if cluster.on_gpu else cluster.threads) + exchange + dense + costs.step_s,
    }
    on_gpu = ("dedup", "train") if cluster.on_gpu else ()
    on_cores = sum(seconds for name, seconds in work.items() if name not in on_gpu)
    moving = exchange + dense + keys if cluster.inside.on_cores or cluster.between.on_cores else 0.0
    parts["cores"] = (on_cores + moving) * cluster.workers / cluster.cores
    binds = max(parts, key=lambda name: parts[name])
    return Prediction(run.batch / parts[binds], binds, parts, sent)


class Point(NamedTuple):
    """A measured point."""

    workers: int
    cores: float
    """Number of cores used by all workers together."""
    examples_per_s: float


class Compared(NamedTuple):
    point: Point
    predicted: float
    """Examples per second."""
    ratio: float
    """Measured divided by predicted speed: at most about 1 if the model holds."""
    scaling: float
    """`ratio` divided by that of the first point: how well the model predicts the effect of more workers."""


def check(measured: Sequence[Point], shape: Shape, costs: Costs, cluster: Cluster, run: Run) -> list[Compared]:
    """Compare each measured point with the prediction for the same workers and cores, on one machine like `cluster`."""
    found: list[Compared] = []
    for point in measured:
        threads = max(1, int(point.cores / point.workers))
        there = replace(cluster, machines=1, workers=point.workers, cores=point.cores, threads=threads)
        predicted = predict(shape, costs, there, run).examples_per_s
        ratio = point.examples_per_s / predicted
        found.append(Compared(point, predicted, ratio, ratio / (found[0].ratio if found else ratio)))
    return found


def _work(shape: Shape, costs: Costs, cluster: Cluster, run: Run) -> dict[str, float]:
    """Seconds per step of each computation of one worker, by one thread or the GPU."""
    num_workers = cluster.num_workers
    examples = run.batch / num_workers
    values = shape.nnz * examples
    owned = unique_keys(shape.fields, shape.exponent, run.batch) / num_workers
    block = unique_keys(shape.fields, shape.exponent, run.batch * run.block_batches) / num_workers / run.block_batches
    exchanged = unique_keys(shape.fields, shape.exponent, examples) * (num_workers - 1) / num_workers
    trained = (
        values * costs.value_trained_ns
        + owned * costs.row_trained_ns
        + 2 * exchanged * costs.row_exchanged_ns
        + examples * (costs.example_trained_ns + shape.dense * costs.parameter_trained_ns)
    )
    of_stage = {
        "read": values * costs.value_read_ns,
        "dedup": values * costs.value_deduplicated_ns,
        "plan": block * costs.key_planned_ns,
        "train": trained,
    }
    return {name: ns / 1e9 for name, ns in of_stage.items()}


def _moves(shape: Shape, cluster: Cluster, run: Run) -> dict[str, float]:
    """Rows per step that arrive on one worker's device, and in its memory from disk; the same numbers move back."""
    examples, num_workers = run.batch * run.block_batches, cluster.num_workers
    held = {"device": cluster.device_rows, "disk": cluster.device_rows + cluster.host_rows}
    return {
        name: unique_keys(shape.fields, shape.exponent, examples, rows * num_workers) / num_workers / run.block_batches
        for name, rows in held.items()
    }


def _all_to_all(cluster: Cluster, num_bytes: float) -> float:
    """Seconds for one worker to send `num_bytes` in equal parts to all others; links inside a machine and between
    machines work concurrently."""
    others = cluster.num_workers - 1
    if not others:
        return 0.0
    near, far = cluster.workers - 1, others - (cluster.workers - 1)
    seconds = (
        num_bytes * peers / others / link.bytes_per_s + peers * link.latency_s
        for peers, link in ((near, cluster.inside), (far, cluster.between))
    )
    return max(seconds)


def _all_reduce(shape: Shape, cluster: Cluster, run: Run) -> float:
    """Seconds per step of the dense synchronization: rings inside machines, and a ring for each part between them."""
    size = WORD_BYTES * shape.dense
    inside = _ring(size * _words(run.inside_every, run.words), cluster.workers, cluster.inside)
    between = _ring(size * run.words / cluster.workers, cluster.machines, cluster.between)
    return inside / run.inside_every + between / run.between_every


def _ring(num_bytes: float, members: int, link: Link) -> float:
    """Seconds of a ring all-reduce: 2 (n - 1) messages of 1/n of the bytes each (Patarasuk and Yuan, JPDC 2009)."""
    return 2 * (members - 1) * (num_bytes / members / link.bytes_per_s + link.latency_s)


def _words(every: int, words: int) -> int:
    """Numbers sent per parameter: one gradient if every step synchronizes, else the merged ones."""
    return 1 if every == 1 else words
