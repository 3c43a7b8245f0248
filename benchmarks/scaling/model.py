"""How many examples per second N workers train, from bytes, links and measured constants; nothing is fitted.

What runs at the same time (reading, dedup, planning, keys on their way, disk, copies to a device, training) is a part,
in seconds a step; the slowest part binds. Within training the exchange of rows and gradients and the dense
synchronization add to what is computed. Processor time of all parts together, by a worker's cores, is a part as well.

Left out: waiting for the slowest of the workers, a cold start, commits, evaluation. So the model is an upper bound, and
what is measured should be below it by as much as those cost (`check`).
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
"""Of a weight, a gradient, a count, a dense parameter."""
PAGE_BYTES = 4_096
"""What a disk reads for a row that lies alone."""


class Bytes(NamedTuple):
    """Of one worker, per step, as the counters count them: payload, sent once."""

    read: float
    keys: float
    rows: float
    gradients: float
    dense: float


class Prediction(NamedTuple):
    examples_per_s: float
    binds: str
    """The part that takes longest."""
    parts: dict[str, float]
    """Seconds a step."""
    sent: Bytes


def bytes_sent(shape: Shape, cluster: Cluster, run: Run) -> Bytes:
    """Per step and worker. Rows are sent for the unique keys of a worker's part that it does not own."""
    examples, num_workers = run.batch / cluster.num_workers, cluster.num_workers
    remote = unique_keys(shape.fields, shape.exponent, examples) * (num_workers - 1) / num_workers
    weights = WORD_BYTES * shape.dim
    inside = _words(run.inside_every, run.words) / run.inside_every if cluster.workers > 1 else 0.0
    between = run.words / run.between_every / cluster.workers if cluster.machines > 1 else 0.0
    return Bytes(
        read=VALUE_BYTES * shape.nnz * examples,
        keys=KEY_BYTES * remote,
        rows=weights * remote,
        # With its count of examples.
        gradients=(weights + WORD_BYTES) * remote,
        dense=WORD_BYTES * shape.dense * (inside + between),
    )


def predict(shape: Shape, costs: Costs, cluster: Cluster, run: Run) -> Prediction:
    """Examples per second of all workers together, the part that binds, and all of them."""
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
    """A measured one."""

    workers: int
    cores: float
    """Of the machine that they had, all together."""
    examples_per_s: float


class Compared(NamedTuple):
    point: Point
    predicted: float
    """Examples per second."""
    ratio: float
    """Measured by predicted: at most about 1 where the model holds."""
    scaling: float
    """The ratio by that of the first point: how well the model tells what more workers bring."""


def check(measured: Sequence[Point], shape: Shape, costs: Costs, cluster: Cluster, run: Run) -> list[Compared]:
    """Each measured point beside what the model says of as many workers and cores, on one machine like `cluster`."""
    found: list[Compared] = []
    for point in measured:
        threads = max(1, int(point.cores / point.workers))
        there = replace(cluster, machines=1, workers=point.workers, cores=point.cores, threads=threads)
        predicted = predict(shape, costs, there, run).examples_per_s
        ratio = point.examples_per_s / predicted
        found.append(Compared(point, predicted, ratio, ratio / (found[0].ratio if found else ratio)))
    return found


def _work(shape: Shape, costs: Costs, cluster: Cluster, run: Run) -> dict[str, float]:
    """Seconds a step that one worker computes, by one thread or the GPU."""
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
    """Rows per step that come to one worker's device, and to its memory from disk; as many leave, on their way back."""
    examples, num_workers = run.batch * run.block_batches, cluster.num_workers
    held = {"device": cluster.device_rows, "disk": cluster.device_rows + cluster.host_rows}
    return {
        name: unique_keys(shape.fields, shape.exponent, examples, rows * num_workers) / num_workers / run.block_batches
        for name, rows in held.items()
    }


def _all_to_all(cluster: Cluster, num_bytes: float) -> float:
    """Seconds in which one worker sends so many bytes in equal parts to all others, inside and between at once."""
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
    """Seconds a step of the dense synchronization: rings inside machines, and one for each part between them."""
    size = WORD_BYTES * shape.dense
    inside = _ring(size * _words(run.inside_every, run.words), cluster.workers, cluster.inside)
    between = _ring(size * run.words / cluster.workers, cluster.machines, cluster.between)
    return inside / run.inside_every + between / run.between_every


def _ring(num_bytes: float, members: int, link: Link) -> float:
    """A ring all-reduce: 2 (n - 1) messages of 1/n of the bytes each (Patarasuk and Yuan, JPDC 2009)."""
    return 2 * (members - 1) * (num_bytes / members / link.bytes_per_s + link.latency_s)


def _words(every: int, words: int) -> int:
    """Gradients are synchronized at every step, what is merged less often."""
    return 1 if every == 1 else words
