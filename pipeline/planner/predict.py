"""Prediction of a run: seconds of each stage and which one binds, seconds of epochs and commits, memory, disk, money.

A stage's time is its counts times costs. While blocks overlap, a block takes as long as its slowest part: training,
which takes longer by `Work.beside` for each CPU second of the other stages; or another stage, such as `prefetch` on a
slow disk; or the CPU time of all stages of all workers, divided by the cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.kernels.read_rows import SCRATCH_BYTES
from pipeline.monitor.auc import SCORE_BYTES, SPILL_BOUND
from pipeline.planner.hits import Forecast, LegForecast
from pipeline.planner.machine import Machine
from pipeline.planner.timing import Cost
from pipeline.planner.work import Work
from pipeline.preflight.setup import Setup
from pipeline.storage.key_map import bytes_for
from pipeline.storage.reader import NUM_READERS

MESSAGES_OF_STEP = 8
"""Messages that one worker sends to each other one at a step, one after the other: rows, their gradients, the dense
part twice, and their sizes."""
KEY_BYTES = 8
PLANNED_BYTES, DEDUP_BYTES = 20, 120
"""Bytes of index arrays for each unique key of a block in flight, and of `dedup`'s tables for one of a block."""
MARK_BYTES = 34
"""Bytes of metadata for each slot."""
MEASURED_BYTES = 32 << 20
"""RAM with which a new run measures the disk, 64 MiB, which the C allocator keeps and uses again in part."""
FILES_OF_CHUNK, FILES_OF_COMMIT = 2, 12
"""Number of files of a chunk, and of files and folders besides that a commit makes durable."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Facts that a prediction follows from."""

    setup: Setup
    machine: Machine
    work: Work
    forecast: Forecast
    dense_bytes: int
    """Bytes of the dense part in a commit."""
    serial: bool = False
    """True for a run in one thread, without Dask."""

    @property
    def workers_here(self) -> int:
        """Workers that share the cores."""
        return self.setup.world

    @property
    def row_bytes(self) -> int:
        return self.setup.row.num_bytes


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Time of an average block of a leg."""

    stages: Mapping[str, Cost]
    seconds: float
    """Time from one block to the next."""
    binds: str
    """Stage that determines it, or "cores" if the CPU time of all stages does."""


@dataclass(frozen=True, slots=True)
class Prediction:
    hit_rates: Mapping[str, float]
    disk_rows_per_second: float
    disk_bytes_per_second: float
    """Rows that training reads from the disk."""
    block: BlockTimes
    """Training block, averaged over the run."""
    block_examples: float
    examples_per_second: float
    """Speed while training."""
    epoch_seconds: float
    """Of an average epoch, with evaluation and commits."""
    run_seconds: float
    run_examples_per_second: float
    """Trained examples divided by all seconds, as a run's result tells it."""
    commits: int
    commit_seconds: float
    commit_bytes: float
    """Of an average commit."""
    ram_bytes: float
    """Peak of all processes of the machine."""
    disk_bytes: float
    """Of the run directory, at the end."""
    map_bytes: float
    """Of the key maps of all workers, at the end."""
    price: float | None
    """Of the run; None if the machine's price is unknown."""


def predict(of: Basis) -> Prediction:
    """Predict the run."""
    forecast, setup, machine = of.forecast, of.setup, of.machine
    trained = [leg for leg in forecast.legs if leg.leg.split == "train"]
    times = {leg.leg: block_times(of, leg) for leg in forecast.legs}
    seconds = sum(times[leg.leg].seconds * leg.blocks for leg in forecast.legs)
    examples = sum(leg.examples for leg in trained)
    train_seconds = sum(times[leg.leg].seconds * leg.blocks for leg in trained)
    whole = in_one(trained)
    block = block_times(of, whole)
    commits = forecast.commits + _timed_commits(of, seconds)
    rows = forecast.rows_committed / max(1, forecast.commits)
    commit_seconds = writing(of, rows / setup.world).seconds + FILES_OF_COMMIT * machine.fsync_seconds
    seconds += commits * (commit_seconds + (0.0 if of.serial else _filling(block, forecast.look_ahead)))
    # At its end a run reads all rows for its fingerprint.
    seconds += forecast.keys * of.row_bytes / setup.world / machine.disk_read_bytes_per_second
    disk_rows = sum(leg.rows["disk_hits"] for leg in trained) / max(train_seconds, 1e-9)
    return Prediction(
        hit_rates=forecast.hit_rates,
        disk_rows_per_second=disk_rows,
        disk_bytes_per_second=disk_rows * of.row_bytes,
        block=block,
        block_examples=whole.examples / max(1.0, whole.blocks),
        examples_per_second=examples / max(train_seconds, 1e-9),
        epoch_seconds=seconds / max(1, len(trained)),
        run_seconds=seconds,
        run_examples_per_second=examples / max(seconds, 1e-9),
        commits=commits,
        commit_seconds=commit_seconds,
        commit_bytes=rows * (of.row_bytes + KEY_BYTES) + of.dense_bytes,
        ram_bytes=ram_of_all(of),
        disk_bytes=disk_at_end(of, commits),
        map_bytes=setup.world * bytes_for(int(forecast.keys / setup.world)),
        price=None if machine.price_per_hour is None else machine.price_per_hour * seconds / 3600,
    )


def in_one(legs: list[LegForecast]) -> LegForecast:
    """All of these legs as one."""
    rows = {name: sum(leg.rows[name] for leg in legs) for name in legs[0].rows}
    blocks, batches = sum(leg.blocks for leg in legs), sum(leg.batches for leg in legs)
    return LegForecast(legs[0].leg, blocks, batches, sum(leg.examples for leg in legs), rows)


def block_times(of: Basis, leg: LegForecast) -> BlockTimes:
    """Time of an average block of a leg."""
    stages = stage_costs(of, leg)
    if of.serial:
        slowest = max(stages, key=lambda stage: stages[stage].seconds)
        return BlockTimes(stages, sum(cost.seconds for cost in stages.values()), slowest)
    beside = of.machine.block_seconds + sum(cost.cpu_seconds for name, cost in stages.items() if name != "train")
    parts = {name: cost.seconds for name, cost in stages.items()}
    parts["train"] += of.work.beside * beside
    on_cpu = beside if of.setup.fit.sizes.on_gpu else beside + stages["train"].cpu_seconds
    parts["cores"] = of.workers_here * on_cpu / of.machine.cores
    binds = max(parts, key=lambda part: parts[part])
    return BlockTimes(stages, parts[binds], binds)


def stage_costs(of: Basis, leg: LegForecast) -> dict[str, Cost]:
    """Cost of each stage for an average block of a leg, on one worker, without other work on the machine."""
    setup, machine, work, world = of.setup, of.machine, of.work, of.setup.world
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
        "plan": _planning(of, rows, victims),
        "prefetch": work.first_row * rows["new"] + copying(of, rows["host_hits"]) + reading(of, rows["disk_hits"]),
        "upload": Cost(),
        "train": step * batches + Cost(swapped.seconds / threads, swapped.cpu_seconds),
        "write_back": copying(of, victims) + writing(of, written + rows["padding"]),
    }
    if world > 1:
        costs["train"] += exchanging(of, batches)
    else:
        del costs["unite"]
    if setup.fit.sizes.on_gpu:
        link = machine.link_bytes_per_second or math.inf
        costs["upload"] = Cost((arrivals * of.row_bytes + examples * work.example_bytes) / link, 0.0)
    else:
        del costs["upload"]
    return costs


def copying(of: Basis, rows: float) -> Cost:
    """Cost of copying so many scattered rows within RAM, with one thread."""
    seconds = rows * of.row_bytes / of.machine.copy_bytes_per_second
    return Cost(seconds, seconds)


def writing(of: Basis, rows: float) -> Cost:
    """Cost of writing so many rows to the log in whole chunks, gathered before."""
    num_bytes, chunks = rows * (of.row_bytes + KEY_BYTES), rows / of.setup.fit.sizes.chunk_rows
    seconds = num_bytes / of.machine.disk_write_bytes_per_second
    return Cost(seconds + FILES_OF_CHUNK * chunks * of.machine.fsync_seconds, copying(of, 2 * rows).cpu_seconds)


def reading(of: Basis, rows: float) -> Cost:
    """Cost of reading so many rows of the log, at random positions.

    Neighbours share a read if the disk streams over the gap between them in less time than another read costs; gaps are
    distributed exponentially. Without direct I/O the page cache holds the log as far as RAM is left for it.
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


def _cached_share(of: Basis, log_bytes: float) -> float:
    """Share of the logs that the page cache can hold."""
    left = of.machine.ram - ram_of_all(of)
    return min(1.0, max(0.0, left / max(1.0, of.setup.world * log_bytes)))


def _planning(of: Basis, rows: Mapping[str, float], victims: float) -> Cost:
    """Cost of `plan`: the block's keys are found once, and those of the window again if rows have to leave."""
    machine, sizes = of.machine, of.setup.fit.sizes
    finds = rows["keys"] * (2 + of.forecast.look_ahead if victims else 1)
    moved = rows["host_hits"] + rows["disk_hits"] + victims + rows["host_to_disk"]
    seconds = (finds + moved) * machine.find_seconds + rows["new"] * machine.insert_seconds
    if victims:
        seconds += (sizes.device_rows + sizes.host_rows) * machine.victim_seconds
    return Cost(seconds, seconds)


def exchanging(of: Basis, batches: float) -> Cost:
    """Cost of what a worker sends and receives while it trains on a block: the weights of the keys that it does not own
    and their gradients, twice the dense gradients, and messages."""
    machine, world = of.machine, of.setup.world
    others = (world - 1) / world
    row_bytes = 4 * of.setup.row.num_weights * of.work.keys_of_batch * others
    sent = 2 * row_bytes + 2 * others * of.dense_bytes / (1 + of.setup.workflow.optimizer.numbers_a_parameter)
    waits = MESSAGES_OF_STEP * (world - 1) * machine.message_seconds
    seconds = batches * (sent / machine.network_bytes_per_second + waits)
    return Cost(seconds, seconds)


def _filling(block: BlockTimes, look_ahead: int) -> float:
    """Time until the first block of a stretch trains, and after its last one: nothing trains beside them."""
    first = sum(block.stages[stage].seconds for stage in ("read", "dedup")) * (look_ahead + 1)
    return first + sum(block.stages[stage].seconds for stage in ("plan", "prefetch", "write_back"))


def _timed_commits(of: Basis, seconds: float) -> int:
    """Number of commits that come by time between the others."""
    minutes, others = of.setup.workflow.commit.every_minutes, max(1, of.forecast.commits)
    return others * int(seconds / others / (60 * minutes)) if minutes else 0


def ram_of_all(of: Basis) -> float:
    """Peak bytes of RAM of all workers and, if they have processes of their own, of the driver."""
    driver = of.work.process_bytes if of.setup.world > 1 else 0
    return of.setup.world * sum(ram_of_worker(of).values()) + driver


def ram_of_worker(of: Basis) -> dict[str, float]:
    """Peak bytes of RAM of one worker, by purpose; of arrays only what is touched."""
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
        "log readers": NUM_READERS * SCRATCH_BYTES if go_to_disk else 0.0,
        "scores": len(setup.workflow.data.labels) * SCORE_BYTES * min(evaluated, SPILL_BOUND),
    }


def disk_at_end(of: Basis, commits: int) -> float:
    """Bytes of the run directory after the run: the log with the commits that are kept, the space that is reserved for
    one more, and dense models."""
    kept = min(commits, of.setup.workflow.commit.keep)
    model = of.dense_bytes / (1 + of.setup.workflow.optimizer.numbers_a_parameter)
    rows = of.forecast.log_rows + of.forecast.reserved_rows
    return rows * (of.row_bytes + KEY_BYTES) + (kept + 1) * of.dense_bytes + model
