"""Costs of a run, as counts times the costs of machine and workflow: time of each stage, memory, and disk space."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pipeline.metrics.evaluation import evaluation_bytes
from pipeline.planner.hits import Forecast, LegForecast
from pipeline.planner.machine import Machine
from pipeline.planner.start import Start
from pipeline.planner.timing import Cost
from pipeline.planner.work import Work
from pipeline.preflight.guesses import DEDUP_BYTES, PLANNED_BYTES
from pipeline.preflight.memory_table import MARK_BYTES
from pipeline.preflight.setup import Setup
from pipeline.stages.scan import FREE_SHARE
from pipeline.storage.key_map import bytes_for
from pipeline.storage.reads import BUFFERS_BYTES

KEY_BYTES = 8
"""Bytes of the key that the log stores with each row."""
MESSAGES_OF_STEP = 8
"""Number of messages that a worker sends to every other worker in a step, one after another: rows, their gradients, the
dense part twice, and their sizes."""
SCAN_SHARE = 0.6
"""CPU time of reading an example's keys ahead, relative to `read` and `dedup` (measured with data shaped like
Criteo's)."""
FILES_OF_CHUNK = 2
"""Number of files per chunk; each is made durable."""
MEASURED_BYTES = 32 << 20
"""RAM that remains of the 64 MiB with which a new run measures the disk: the C allocator keeps them and reuses them in
part."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Setup, costs and counts of a run."""

    setup: Setup
    machine: Machine
    work: Work
    forecast: Forecast
    dense_bytes: int
    """Bytes of the dense part in a commit."""
    serial: bool = False
    """True if the run uses one thread, without Dask."""
    start: Start = field(default_factory=Start)

    @property
    def row_bytes(self) -> int:
        return self.setup.row.num_bytes


def stage_costs(of: Basis, leg: LegForecast) -> dict[str, Cost]:
    """Cost of each stage for an average block of a leg, on one worker of an otherwise idle machine."""
    setup, work, world = of.setup, of.work, of.setup.world
    rows = {name: leg.of_block(name, world) for name in leg.rows}
    trains = leg.leg.split == "train"
    examples, batches = leg.examples / max(1.0, leg.blocks) / world, leg.batches / max(1.0, leg.blocks)
    victims = rows["device_to_host"] + rows["device_to_disk"]
    arrivals = rows["new"] + rows["host_hits"] + rows["disk_hits"]
    written = rows["device_to_disk"] + rows["host_to_disk"] - rows["unchanged"]
    step = work.train_batch if trains else work.score_batch
    swapped = copying(of, arrivals + victims) if trains else Cost()
    threads = setup.workflow.schedule.threads
    costs = {
        "read": work.read_example * examples,
        "dedup": work.dedup_value * (examples * work.values_of_example),
        "unite": work.dedup_value * (2 * rows["keys"]),
        "plan": _planning(of, rows["keys"], arrivals + victims + rows["host_to_disk"] if trains else 0.0, victims),
        "prefetch": work.first_row * rows["new"] + copying(of, rows["host_hits"]) + reading(of, rows["disk_hits"]),
        "train": step * batches + Cost(swapped.seconds / threads, swapped.cpu_seconds),
        "write_back": copying(of, victims) + writing(of, written + rows["padding"]),
    }
    filled = of.forecast.keys / world > (1 - 1 / FREE_SHARE) * setup.fit.sizes.device_rows
    if setup.workflow.storage.foresees and filled:
        # Each worker scans the keys of whole batches.
        costs["scan"] = (costs["read"] + costs["dedup"]) * (SCAN_SHARE * world)
    if world > 1:
        costs["train"] += exchanging(of, batches)
    else:
        del costs["unite"]
    return costs


def copying(of: Basis, rows: float) -> Cost:
    """Cost of copying `rows` scattered rows within RAM, with one thread."""
    seconds = rows * of.row_bytes / of.machine.copy_bytes_per_second
    return Cost(seconds, seconds)


def writing(of: Basis, rows: float) -> Cost:
    """Cost of writing `rows` gathered rows to the log in whole chunks."""
    num_bytes, chunks = rows * (of.row_bytes + KEY_BYTES), rows / of.setup.fit.sizes.chunk_rows
    seconds = num_bytes / of.machine.disk_write_bytes_per_second
    return Cost(seconds + FILES_OF_CHUNK * chunks * of.machine.fsync_seconds, copying(of, 2 * rows).cpu_seconds)


def reading(of: Basis, rows: float) -> Cost:
    """Cost of reading `rows` rows at random positions of the log.

    Neighbouring rows share a read if streaming over the gap between them takes less time than another read; gaps have
    an exponential distribution. Without direct I/O, the page cache holds as much of the log as the remaining RAM
    allows.
    """
    if rows <= 0:
        return Cost()
    machine, log_bytes = of.machine, of.forecast.log_rows * (of.row_bytes + KEY_BYTES)
    gap = max(1e-12, log_bytes / rows / machine.disk_read_bytes_per_second)
    each = gap * (1 - math.exp(-machine.scattered_read_seconds / gap))
    each += of.row_bytes / machine.disk_read_bytes_per_second
    cpu = rows * machine.cached_read_seconds
    cached = 0.0 if of.setup.workflow.storage.direct else _cached_share(of, log_bytes)
    return Cost(max(cpu / machine.cores, rows * each * (1 - cached)), cpu)


def fingerprinting(of: Basis) -> Cost:
    """Cost of the fingerprint at the end of a run: each worker looks up all its rows and reads them from the log in
    order."""
    machine, rows = of.machine, of.forecast.keys / of.setup.world
    num_bytes = rows * of.row_bytes
    cpu = rows * (machine.find_seconds + machine.cached_read_seconds)
    cached = 0.0 if of.setup.workflow.storage.direct else _cached_share(of, num_bytes)
    return Cost(cpu + (1 - cached) * num_bytes / machine.disk_read_bytes_per_second, cpu)


def _cached_share(of: Basis, log_bytes: float) -> float:
    """Share of the logs that fits in the page cache."""
    left = of.machine.ram - ram_of_all(of)
    return min(1.0, max(0.0, left / max(1.0, of.setup.world * log_bytes)))


def _planning(of: Basis, keys: float, moved: float, victims: float) -> Cost:
    """Cost of `plan`, which looks up each key of the block once. `moved`: number of rows that arrive or leave."""
    machine, sizes = of.machine, of.setup.fit.sizes
    seconds = keys * machine.plan_key_seconds + moved / 2 * machine.plan_row_seconds
    if victims:
        seconds += (sizes.device_rows + sizes.host_rows) * machine.victim_seconds
    return Cost(seconds, seconds)


def exchanging(of: Basis, batches: float) -> Cost:
    """Cost of what a worker sends and receives while it trains on a block: weights and gradients of the keys that it
    does not own, dense gradients (twice), and message latency."""
    machine, world = of.machine, of.setup.world
    others = (world - 1) / world
    row_bytes = 4 * of.setup.row.num_weights * of.work.keys_of_batch * others
    sent = 2 * row_bytes + 2 * others * of.dense_bytes / (1 + of.setup.workflow.optimizer.numbers_a_parameter)
    waits = MESSAGES_OF_STEP * (world - 1) * machine.message_seconds
    seconds = batches * (sent / machine.network_bytes_per_second + waits)
    return Cost(seconds, seconds)


def ram_of_all(of: Basis) -> float:
    """Peak RAM in bytes of all workers and, if they are separate processes, of the driver."""
    driver = of.work.process_bytes if of.setup.world > 1 else 0
    return of.setup.world * sum(ram_of_worker(of).values()) + driver


def ram_of_worker(of: Basis) -> dict[str, float]:
    """Peak RAM in bytes of one worker, by purpose. Only the touched parts of arrays count."""
    setup, work, forecast = of.setup, of.work, of.forecast
    sizes, ahead, row = setup.fit.sizes, forecast.look_ahead, of.row_bytes
    keys, block_keys = forecast.keys / setup.world, max(setup.fit.window.keys_of_blocks, default=0)
    block_examples = forecast.block_batches * setup.workflow.schedule.batch_size / setup.world
    device_rows = min(keys, sizes.device_rows)
    leave, go_to_disk = keys > sizes.device_rows, keys > sizes.device_rows + sizes.host_rows
    rings = min(sizes.staging_rows, (ahead + 1) * block_keys)
    rings += min(sizes.outgoing_rows, (ahead + 1) * block_keys) if leave else 0
    evaluated = max((setup.agenda.num_examples.get(split, 0) for split in ("validation", "test")), default=0)
    of_ring = min(sizes.read_ring_bytes, (2 * ahead + 1) * block_examples * work.example_bytes)
    return {
        "process": work.process_bytes + MEASURED_BYTES + (0 if of.serial else of.machine.dask_bytes),
        "device": 0.0 if sizes.on_gpu else device_rows * row,
        "host": min(max(0.0, keys - sizes.device_rows), sizes.host_rows) * row,
        "rings": rings * row,
        "chunk": sizes.chunk_rows * row,
        "slots": MARK_BYTES * (sizes.device_rows + sizes.host_rows),
        "read": of_ring + sizes.window_bytes,
        "map": bytes_for(int(keys)),
        "keys": block_keys * (DEDUP_BYTES + PLANNED_BYTES * (2 * ahead + 1)),
        "log readers": BUFFERS_BYTES if go_to_disk else 0.0,
        "scores": evaluation_bytes(setup.workflow, evaluated),
    }


def disk_at_end(of: Basis, commits: int) -> float:
    """Bytes of the run directory after the run: the log with the kept commits, the space reserved for another commit,
    and dense models."""
    kept = min(commits, of.setup.workflow.commit.keep)
    model = of.dense_bytes / (1 + of.setup.workflow.optimizer.numbers_a_parameter)
    rows = of.forecast.log_rows + of.forecast.reserved_rows
    return rows * (of.row_bytes + KEY_BYTES) + (kept + 1) * of.dense_bytes + model
