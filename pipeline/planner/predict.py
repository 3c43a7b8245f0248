"""Prediction of a run: time of each stage, the bottleneck, time of epochs and commits, memory, disk space, price.

A stage's time is its counts times costs. When blocks overlap, a block takes as long as its slowest part: training,
which takes `Work.slowdown` seconds longer per CPU second of the other stages; another stage, such as `prefetch` on a
slow disk; or the CPU time of all stages of all workers divided by the number of cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.planner import hits
from pipeline.planner.costs import KEY_BYTES, Basis, disk_at_end, fingerprinting, ram_of_all, stage_costs, writing
from pipeline.planner.hits import LegForecast
from pipeline.planner.timing import Cost
from pipeline.preflight.checked import Checked
from pipeline.preflight.chosen_caps import budget_of
from pipeline.preflight.setup import divide_caps
from pipeline.preflight.sizes import DoesNotFit
from pipeline.storage.key_map import bytes_for

OTHER_MEMORY = {"half": 0.5, "twice": 2.0}
"""Factors by which the memory for choosing caps is changed for further predictions."""
FILES_OF_COMMIT = 12
"""Number of files and folders that a commit makes durable, excluding chunks."""


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Time of an average block of a leg."""

    stages: Mapping[str, Cost]
    seconds: float
    """Time from one block to the next."""
    binds: str
    """Stage that determines `seconds`; "cores" if the CPU time of all stages does."""


@dataclass(frozen=True, slots=True)
class Prediction:
    hit_rates: Mapping[str, float]
    disk_rows_per_second: float
    disk_bytes_per_second: float
    """Disk reads of rows while training."""
    block: BlockTimes
    """Average training block of the run."""
    block_examples: float
    examples_per_second: float
    """Speed while training."""
    epoch_seconds: float
    """Seconds of an average epoch, including evaluation and commits."""
    run_seconds: float
    run_examples_per_second: float
    """Trained examples divided by all seconds, as in a run's result."""
    commits: int
    commit_seconds: float
    commit_bytes: float
    """Bytes of an average commit."""
    ram_bytes: float
    """Peak over all processes of the machine together."""
    disk_bytes: float
    """Bytes of the run directory at the end."""
    map_bytes: float
    """Bytes of the key maps of all workers at the end."""
    price: float | None
    """Price of the run; None if the machine's price is unknown."""


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
    seconds += of.work.compile_seconds + fingerprinting(of).seconds
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
    """Merge these legs into one."""
    rows = {name: sum(leg.rows[name] for leg in legs) for name in legs[0].rows}
    blocks, batches = sum(leg.blocks for leg in legs), sum(leg.batches for leg in legs)
    return LegForecast(legs[0].leg, blocks, batches, sum(leg.examples for leg in legs), rows)


def block_times(of: Basis, leg: LegForecast) -> BlockTimes:
    """Time of an average block of a leg."""
    stages = stage_costs(of, leg)
    if of.serial:
        slowest = max(stages, key=lambda stage: stages[stage].seconds)
        return BlockTimes(stages, sum(cost.seconds for cost in stages.values()), slowest)
    others = of.machine.block_seconds + sum(cost.cpu_seconds for name, cost in stages.items() if name != "train")
    parts = {name: cost.seconds for name, cost in stages.items()}
    parts["train"] += of.work.slowdown * others
    on_cpu = others if of.setup.fit.sizes.on_gpu else others + stages["train"].cpu_seconds
    parts["cores"] = of.setup.world * on_cpu / of.machine.cores
    binds = max(parts, key=lambda part: parts[part])
    return BlockTimes(stages, parts[binds], binds)


def _filling(block: BlockTimes, look_ahead: int) -> float:
    """Time of a stretch during which nothing trains: before its first block trains, and after its last one."""
    first = sum(block.stages[stage].seconds for stage in ("read", "dedup")) * (look_ahead + 1)
    return first + sum(block.stages[stage].seconds for stage in ("plan", "prefetch", "write_back"))


def _timed_commits(of: Basis, seconds: float) -> int:
    """Number of commits by time, taken between the others."""
    minutes, others = of.setup.workflow.commit.every_minutes, max(1, of.forecast.commits)
    return others * int(seconds / others / (60 * minutes)) if minutes else 0


@dataclass(frozen=True, slots=True)
class WithMemory:
    """Prediction for the run with other memory. If not even one batch fits, `prediction` is None and `why_not` gives
    the reason."""

    memory: int
    prediction: Prediction | None = None
    why_not: str | None = None


def predict_with_other_memory(checked: Checked, basis: Basis) -> dict[str, WithMemory]:
    """Predict the run for each factor of OTHER_MEMORY. Empty if all caps are given."""
    found: dict[str, WithMemory] = {}
    if not checked.storage.leaves_out:
        return found
    for name, factor in OTHER_MEMORY.items():
        memory = int(factor * budget_of(checked))
        storage = checked.storage.model_copy(update={"memory": memory})
        try:
            setup = divide_caps(replace(checked, storage=storage, run_dir=None, say=lambda line: None))
        except DoesNotFit as error:
            found[name] = WithMemory(memory, why_not=str(error))
            continue
        counts = hits.forecast(setup, basis.work.values_of_example, start=basis.start)
        found[name] = WithMemory(memory, predict(replace(basis, setup=setup, forecast=counts)))
    return found
