"""Hits and traffic of the tiers, found by replaying the plans of a run on keys alone, without rows.

A replay ends after MAX_VALUES values or MAX_BLOCKS blocks, which take a few seconds. The rest of the run is
extrapolated: arriving and leaving rows from the last third of the replayed blocks, new keys by Heaps' law. For large
blocks, a sample of the keys is replayed in tiers that are smaller by the same factor (spatially hashed sampling: either
all uses of a key are in the sample or none).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.data.agenda import START
from pipeline.machine.limits import cpus
from pipeline.metrics.totals import COUNTS
from pipeline.planner.start import Start
from pipeline.preflight.guesses import growth_between
from pipeline.preflight.setup import Setup
from pipeline.replay.capacities import NO_LIMIT, Capacities
from pipeline.replay.engine import Simulation
from pipeline.replay.sample import PARTS, Sample
from pipeline.replay.totals import BlockMoves
from pipeline.replay.trace import FileTrace, Trace, shards_of
from pipeline.spans.passes import Leg
from pipeline.stages.unique_keys import KeyReader

MAX_VALUES, MAX_BLOCKS = 48_000_000, 3000
"""Maximum number of categorical values that a replay reads, and of blocks that it plans; both take a few seconds."""
BLOCK_KEYS, SLOTS = 1 << 15, 1 << 22
"""Number of keys per block, and of slots of device and host, above which a sample of the keys is replayed."""


@dataclass(frozen=True, slots=True)
class LegForecast:
    """One pass over a split."""

    leg: Leg
    blocks: float
    batches: float
    examples: float
    rows: dict[str, float]
    """Sums of the fields of `Moves` over all blocks and workers, by name."""

    def of_block(self, name: str, world: int) -> float:
        """Rows per worker in an average block."""
        return self.rows[name] / max(1.0, self.blocks) / world


@dataclass(frozen=True, slots=True)
class Forecast:
    """Rows and commits of a whole run."""

    legs: tuple[LegForecast, ...]
    commits: int
    """Number of commits, excluding commits by time."""
    rows_committed: float
    """Total number of rows that these commits write."""
    keys: float
    """Number of keys of the table at the end."""
    log_rows: float
    """Rows of the log at the end, including stale rows and padding."""
    reserved_rows: float
    """Rows for which disk space is reserved at the end."""
    block_batches: int
    look_ahead: int
    replayed: float
    """Share of the run's examples whose keys were replayed; the rest is extrapolated."""
    sample: int
    """Inverse of the share of keys that were replayed."""
    stopped: str = ""
    """Reason why the run would stop early."""

    def total(self, name: str) -> float:
        """Sum of these rows over all legs."""
        return sum(leg.rows[name] for leg in self.legs)

    @property
    def hit_rates(self) -> dict[str, float]:
        """Hit rate of each tier, as `TierTotals.report` defines it."""
        keys, device, host = (self.total(name) for name in ("keys", "device_hits", "host_hits"))
        disk, new = self.total("disk_hits"), self.total("new")
        pairs = {"device": (device, keys), "host": (host, keys - device), "disk": (disk, keys - device - host - new)}
        return {tier: hits / asked if asked > 0 else math.nan for tier, (hits, asked) in pairs.items()}


def forecast(
    setup: Setup, values_of_example: float, max_values: int = MAX_VALUES, start: Start | None = None
) -> Forecast:
    """Replay the run from its start, up to the limits of a replay, and extrapolate the rest. Raises ValueError for bad
    data, as the run would."""
    start = start or Start()
    workflow, fit = setup.workflow, setup.fit
    too_large = max(
        max(fit.window.keys_of_blocks, default=0) / BLOCK_KEYS,
        setup.world * (fit.sizes.device_rows + fit.sizes.host_rows) / SLOTS,
    )
    rate = 1 << math.ceil(math.log2(max(1.0, too_large)))
    shards = shards_of(workflow.workers.num_shards(setup.world), setup.world)
    reader = KeyReader(workflow.data, workflow.seed, cpus(), start.begun)
    try:
        trace: Trace = FileTrace(reader, setup.agenda, shards)
        sample = Sample(trace, PARTS / rate) if rate > 1 else None
        capacities = Capacities.of(fit.sizes, workflow.storage)
        if rate > 1:
            # A sampled block may happen to have more keys than fit its share of a ring's buffer.
            capacities = replace(capacities.sampled(1 / rate), staging_rows=NO_LIMIT, outgoing_rows=NO_LIMIT)
        simulation = Simulation(
            sample.parts[0] if sample else trace, capacities,
            (workflow.storage.device_policy, workflow.storage.host_policy), fit.look_ahead, fit.block_batches,
            workflow.commit.every_blocks, workflow.commit.keep,
        )  # fmt: skip
        if start.at != START:
            simulation.begin_at(start.at, sample.parts_of(start.keys_U)[0] if sample else start.keys_U)
        replay = Replay(simulation, setup, rate, sample, start)
        replay.run(max_values / max(1.0, values_of_example))
    finally:
        reader.close()
    return replay.forecast()


class Replay:
    """A simulation that runs up to its limits, and the extrapolation of the rest."""

    def __init__(self, simulation: Simulation, setup: Setup, rate: int, sample: Sample | None, start: Start) -> None:
        self._simulation, self._agenda, self._rate, self._sample = simulation, setup.agenda, rate, sample
        self._trained, self._legs = self._agenda.trained_before(start.at), start.legs(self._agenda)
        self._batch_size = setup.workflow.schedule.batch_size
        self._growth = setup.workflow.storage.log_growth
        self._keys_after: list[tuple[float, float]] = []
        """(training examples, keys of the table) after each training block of the first epoch."""
        self._ended = False

    def run(self, max_examples: float) -> None:
        """Replay blocks until `max_examples` examples are read or MAX_BLOCKS blocks are planned."""
        seen, trained = 0, self._trained
        for planned, block in enumerate(self._simulation.steps()):
            if seen >= max_examples or planned == MAX_BLOCKS:
                return
            seen += block.num_examples
            if block.trains and block.epoch == 0:
                keys = self._rate * sum(len(places.map) for places in self._simulation.places)
                before = trained if block.span is not None else block.first_example
                self._keys_after.append((before, keys))
                trained += block.num_examples
        self._ended = True

    def forecast(self) -> Forecast:
        by_leg: dict[Leg, list[BlockMoves]] = {}
        for of_block in self._simulation.totals.series:
            by_leg.setdefault(Leg.of(of_block.block), []).append(of_block)
        steady = self._steady(by_leg)
        legs = tuple(self._leg(leg, size, by_leg.get(leg, []), steady) for leg, size in self._legs)
        seen = sum(of.block.num_examples for series in by_leg.values() for of in series)
        disk, places = self._simulation.totals.disk, self._simulation.places
        stopped = self._simulation.totals.stopped
        keys = self._rate * sum(len(p.map) for p in places) if self._ended else self._keys_of_epoch()
        held = min(keys, self._rate * sum(len(p.device.keys_S) + len(p.host.keys_S) for p in places))
        committed = self._rate * float(disk.rows_changed + disk.rows_merged)
        log_rows = float(self._rate * sum(p.chunks.present * p.chunks.rows for p in places))
        epochs, commits = sum(leg.leg.split == "train" for leg in legs), disk.commits
        reserved = [min(p.commit_chunks, p.caps.disk_chunks - p.chunks.present) * p.chunks.rows for p in places]
        reserved_rows = float(self._rate * max(0, sum(reserved)))
        if not self._ended:
            # Commits are taken at the end of each epoch and whenever the log has grown by its allowance. A commit
            # writes the rows in device and host; rows that left earlier are already in the log.
            written = sum(leg.rows[n] for leg in legs for n in ("device_to_disk", "host_to_disk", "padding"))
            written -= sum(leg.rows["unchanged"] for leg in legs)
            least = self._rate * sum(p.chunks.allowance * p.chunks.rows for p in places)
            commits = max(commits, epochs * (1 + int(written / max(1, epochs) / max(least, self._growth * keys))))
            committed, log_rows = max(committed, commits * held), keys + 2 * held
            slots = self._rate * sum(len(p.device.keys_S) + len(p.host.keys_S) for p in places)
            reserved_rows = slots + keys
        pace = self._simulation.pace
        return Forecast(
            legs, commits, committed, keys, log_rows, reserved_rows, pace.block_batches, pace.look_ahead,
            min(1.0, seen / max(1, sum(size for _, size in self._legs))),
            self._rate, stopped.message if stopped else "",
        )  # fmt: skip

    def _leg(self, leg: Leg, examples: int, series: Sequence[BlockMoves], steady: dict[str, float]) -> LegForecast:
        """Counts for `examples` examples of a leg: replayed counts, plus steady-state counts for the examples not
        replayed."""
        rows = self._rows(series)
        seen = sum(of.block.num_examples for of in series)
        batches = -(-examples // self._batch_size)
        blocks = float(len(series)) if seen >= examples else batches / self._simulation.pace.block_batches
        if seen < examples:
            more = {name: value * (examples - seen) for name, value in steady.items()}
            first = leg.split == "train" and leg.epoch == 0
            new = max(0.0, self._keys_of_epoch() - self._keys_after[-1][1]) if first and self._keys_after else 0.0
            if leg.span is not None and self._keys_after:
                # The keys still to come are divided among the spans in proportion to their examples not yet replayed.
                left = self._agenda.num_examples["train"] - self._keys_after[-1][0]
                new *= min(1.0, (examples - seen) / max(1.0, left))
            arrivals = more["new"] + more["host_hits"] + more["disk_hits"]
            more["new"] = min(new, arrivals)
            more["disk_hits"] = max(0.0, arrivals - more["new"] - more["host_hits"])
            if leg.split != "train":
                moved = ("device_to_host", "device_to_disk", "host_to_disk", "unchanged", "padding")
                more |= dict.fromkeys(moved, 0.0)
            rows = {name: value + more[name] for name, value in rows.items()}
        return LegForecast(leg, blocks, batches, examples, rows)

    def _rows(self, series: Sequence[BlockMoves]) -> dict[str, float]:
        """Sums of the moves of these blocks. With a sample, the true number of keys is known; the difference from the
        estimate is attributed to frequent keys, which are found on the device."""
        moves = [of_worker for of in series for of_worker in of.moves if of_worker]
        rows = {name: float(self._rate * sum(getattr(of_worker, name) for of_worker in moves)) for name in COUNTS}
        if self._sample:
            known = sum(self._sample.num_keys(of.block) for of in series)
            rows["device_hits"] = max(0.0, rows["device_hits"] + known - rows["keys"])
            rows["keys"] = float(known)
        return rows

    def _steady(self, by_leg: dict[Leg, list[BlockMoves]]) -> dict[str, float]:
        """Rows per example, by name, in the last third of the replayed training blocks."""
        trained = [of for leg, series in by_leg.items() if leg.split == "train" for of in series]
        last = trained[-max(1, len(trained) // 3) :]
        examples = sum(of.block.num_examples for of in last)
        return {name: value / max(1, examples) for name, value in self._rows(last).items()}

    def _keys_of_epoch(self) -> float:
        """Number of keys after the first epoch, by Heaps' law: a power of the number of examples."""
        if not self._keys_after:
            return 0.0
        examples, keys = self._keys_after[-1]
        half_examples, half_keys = self._keys_after[len(self._keys_after) // 2]
        growth = growth_between(half_examples, half_keys, examples, keys)
        return keys * (self._agenda.num_examples["train"] / max(1.0, examples)) ** growth
