"""Simulations of a workflow with several sizes and policies at once, which read the data once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from pipeline.metrics.totals import TierTotals
from pipeline.monitor.history import json_value
from pipeline.preflight.sizes import Sizes
from pipeline.records import Block
from pipeline.replay.belady import AllUses, Bound, belady
from pipeline.replay.capacities import Capacities
from pipeline.replay.engine import Simulation
from pipeline.replay.sample import PARTS, RowCounts, Sample, estimate_counts, hit_shares, scale_bound
from pipeline.replay.totals import Totals
from pipeline.replay.trace import Trace
from pipeline.settings.caps import CapSizes
from pipeline.workflow import Workflow


@dataclass(frozen=True, slots=True)
class GridSize:
    """Capacities of every worker, and the pace that fits them."""

    name: str
    storage: CapSizes
    sizes: Sizes
    look_ahead: int
    block_batches: int


@dataclass(frozen=True, slots=True)
class Cell:
    """Hits and traffic of one size with one pair of policies."""

    size: str
    policies: tuple[str, str]
    """Names of those of device and host."""
    memory_bytes: int
    """Bytes of the rows of device and host, of all workers."""
    tiers: Mapping[str, Mapping[str, Any]]
    """See `TierTotals.report`; of a sample, estimates for all keys."""
    device_hits: float
    """Share of all keys found on the device."""
    memory_hits: float
    """Share of all keys found on the device or the host."""
    disk_reads: int
    """Rows read from the disk."""
    errors: Mapping[str, float]
    """Standard errors of the two shares, "device" and "memory"; empty without a sample."""
    stopped: str | None
    """Message of the refusal that ended the run early."""

    def as_json(self) -> dict[str, Any]:
        """The cell for JSON; what is not a number is null."""
        device, host = self.policies
        return dict(
            json_value({
                "size": self.size, "device_policy": device, "host_policy": host, "memory_bytes": self.memory_bytes,
                "tiers": self.tiers, "errors": dict(self.errors), "stopped": self.stopped,
            })
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoundCell:
    """Bound on the hits of any policies with one size."""

    size: str
    memory_bytes: int
    device: Bound
    memory: Bound

    @property
    def disk_reads(self) -> int:
        """Minimum of rows that are read from the disk."""
        return max(0, self.memory.keys - self.memory.hits - self.memory.first)

    def as_json(self) -> dict[str, Any]:
        shares = {"device": self.device.hit_rate, "memory": self.memory.hit_rate}
        return dict(
            json_value({"size": self.size, "memory_bytes": self.memory_bytes, **shares, "disk_reads": self.disk_reads})
        )


class Grid:
    """All simulations of a command."""

    def __init__(self, trace: Trace, workflow: Workflow, share: float = 1.0) -> None:
        """`share`: of the keys that are simulated; 1: all."""
        self._workflow, self._world = workflow, len(trace.shards)
        self._share = share / PARTS if share < 1 else 1.0
        self._sample = Sample(trace, share) if share < 1 else None
        self._traces: Sequence[Trace] = self._sample.parts if self._sample else [trace]
        self._runs: list[Iterator[Block]] = []
        self._simulated: list[tuple[GridSize, tuple[str, str], list[Totals]]] = []
        self._uses: dict[int, list[list[AllUses]]] = {}
        """Next uses of each worker's keys in each trace, by number of batches of a block."""

    def simulate(self, size: GridSize, policies: tuple[str, str]) -> None:
        """Add a cell."""
        commit, capacities = self._workflow.commit, Capacities.of(size.sizes, size.storage)
        if self._sample:
            capacities = capacities.sampled(self._share)
        simulations = [
            Simulation(
                trace, capacities, policies, size.look_ahead, size.block_batches, commit.every_blocks, commit.keep
            )
            for trace in self._traces
        ]
        self._runs += [simulation.steps() for simulation in simulations]
        self._simulated.append((size, policies, [simulation.totals for simulation in simulations]))

    def look_at(self, block_batches: int) -> None:
        """Collect the next uses of all keys, for bounds."""
        if block_batches not in self._uses:
            self._uses[block_batches] = [[AllUses() for _ in range(self._world)] for _ in self._traces]
            self._runs.append(self._collect(block_batches))

    def _collect(self, block_batches: int) -> Iterator[Block]:
        for block in self._traces[0].agenda.blocks(block_batches):
            yield block
            for trace, of_workers in zip(self._traces, self._uses[block_batches], strict=True):
                for uses, keys_U in zip(of_workers, trace.keys(block), strict=True):
                    uses.add(keys_U, block.trains)

    def run(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Run all simulations side by side: the one that is farthest behind goes on, so that blocks are read about
        once. `say` is called at every tenth of the examples that all have passed."""
        behind = [(0, n) for n in range(len(self._runs))]
        total, said = self._traces[0].agenda.total_examples, 0
        while behind:
            examples, n = heappop(behind)
            if 10 * examples // total > said:
                said = 10 * examples // total
                say(f"{examples:,} of {total:,} examples")
            block = next(self._runs[n], None)
            if block:
                heappush(behind, (examples + block.num_examples, n))

    def cells(self) -> Iterator[Cell]:
        """Cells in the order in which they were added, once all have run."""
        for size, policies, totals in self._simulated:
            yield self._cell(size, policies, totals)

    def _cell(self, size: GridSize, policies: tuple[str, str], totals: list[Totals]) -> Cell:
        stopped = next((of_part.stopped.message for of_part in totals if of_part.stopped), None)
        counts, errors = totals[0].counts(), dict[str, float]()
        if self._sample:
            estimated = estimate_counts(list(zip(self._sample.parts, totals, strict=True)))
            counts, errors = estimated.counts, estimated.errors
        chunks = sum(of_part.chunks for of_part in totals) // len(totals)
        return cell_of(size.name, policies, AllWorkers.of(size.sizes, self._world), counts, chunks, errors, stopped)

    def bounds(self, size: GridSize) -> BoundCell:
        """Bounds of a size whose blocks were looked at, once all have run."""
        memory = size.sizes.device_rows + size.sizes.host_rows
        device, both = (self._bound(size.block_batches, rows) for rows in (size.sizes.device_rows, memory))
        return BoundCell(size.name, self._world * memory * size.sizes.row_bytes, device, both)

    def _bound(self, block_batches: int, rows: int) -> Bound:
        capacity = max(1, round(self._share * rows))
        of_all = self._uses[block_batches]
        total = sum((belady(uses, capacity) for of_workers in of_all for uses in of_workers), Bound())
        if not self._sample:
            return total
        blocks = self._traces[0].agenda.blocks(block_batches)
        return scale_bound(total, PARTS * self._share, sum(map(self._sample.num_keys, blocks)))


@dataclass(frozen=True, slots=True)
class AllWorkers:
    """Capacities of all workers together."""

    device_rows: int
    host_rows: int
    disk_chunks: int
    chunk_rows: int
    row_bytes: int

    @classmethod
    def of(cls, sizes: Sizes, world: int) -> AllWorkers:
        """Capacities of `world` workers of these sizes."""
        device, host, disk = sizes.device_rows, sizes.host_rows, sizes.disk_chunks
        return cls(world * device, world * host, world * disk, sizes.chunk_rows, sizes.row_bytes)


def cell_of(
    name: str, policies: tuple[str, str], whole: AllWorkers, counts: RowCounts, chunks: int,
    errors: Mapping[str, float], stopped: str | None,
) -> Cell:  # fmt: skip
    """Cell of these counts, with this number of chunks on disk."""
    totals = TierTotals()
    totals.load(counts)
    rows = {"device": whole.device_rows, "host": whole.host_rows}
    chunk_bytes = whole.chunk_rows * (whole.row_bytes + 8)
    tiers = totals.report(rows, whole.row_bytes, chunks * chunk_bytes, whole.disk_chunks * chunk_bytes)
    shares = hit_shares(counts)
    reads = sum(counts[of]["disk_hits"] for of in counts)
    memory_bytes = sum(rows.values()) * whole.row_bytes
    return Cell(name, policies, memory_bytes, tiers, shares["device"], shares["memory"], reads, errors, stopped)
