"""Simultaneous simulations of a workflow with several sizes and policies, reading the data once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, ClassVar

from pipeline.metrics.totals import TierTotals
from pipeline.monitor.history import json_value
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import Fit, Sizes
from pipeline.records import Block
from pipeline.replay.belady import AllUses, Bound, belady
from pipeline.replay.capacities import Capacities
from pipeline.replay.engine import Simulation
from pipeline.replay.sample import PARTS, RowCounts, Sample, estimate_counts, hit_shares, scale_bound
from pipeline.replay.totals import Totals
from pipeline.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class Cell:
    """Hits and traffic of one size with one pair of policies."""

    size: str
    policies: tuple[str, str]
    """Names of the policies of device and host."""
    whole: Capacities
    """Total capacities of all workers."""
    row_bytes: int
    counts: RowCounts
    """Row counts; with a sample, estimates for all keys."""
    chunks: int
    """Number of chunks on disk at the end."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of the hit shares "device" and "memory"; empty without a sample."""
    stopped: str | None = None
    """Message of the refusal that ended the run early."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the device and host rows of all workers."""
        return (self.whole.device_rows + self.whole.host_rows) * self.row_bytes

    @property
    def shares(self) -> dict[str, float]:
        """Shares of all keys: "device", found on the device; "memory", found on the device or the host."""
        return hit_shares(self.counts)

    @property
    def disk_reads(self) -> int:
        """Rows read from the disk."""
        return sum(counts["disk_hits"] for counts in self.counts.values())

    @property
    def tiers(self) -> dict[str, dict[str, float]]:
        """See `TierTotals.report`."""
        totals, whole = TierTotals(), self.whole
        totals.load(self.counts)
        rows, chunk_bytes = (
            {"device": whole.device_rows, "host": whole.host_rows},
            whole.chunk_rows * (self.row_bytes + 8),
        )
        return totals.report(rows, self.row_bytes, self.chunks * chunk_bytes, whole.disk_chunks * chunk_bytes)

    def as_json(self) -> dict[str, Any]:
        """The cell as JSON values; non-finite numbers become null."""
        device, host = self.policies
        return dict(json_value({
            "size": self.size, "device_policy": device, "host_policy": host, "memory_bytes": self.memory_bytes,
            "tiers": self.tiers, "errors": dict(self.errors), "stopped": self.stopped,
        }))  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoundCell:
    """Bound on the hits of any policies with one size. Attributes are as in `Cell`."""

    size: str
    memory_bytes: int
    device: Bound
    memory: Bound
    policies: ClassVar[tuple[str, str]] = ("optimal", "")
    errors: ClassVar[Mapping[str, float]] = {}

    @property
    def shares(self) -> dict[str, float]:
        return {"device": self.device.hit_rate, "memory": self.memory.hit_rate}

    @property
    def disk_reads(self) -> int:
        """Minimum number of rows read from the disk."""
        return max(0, self.memory.keys - self.memory.hits - self.memory.first)

    def as_json(self) -> dict[str, Any]:
        fields = {"size": self.size, "memory_bytes": self.memory_bytes, "disk_reads": self.disk_reads}
        return dict(json_value(fields | self.shares))


class Grid:
    """All simulations of a command."""

    def __init__(self, trace: Trace, share: float = 1.0) -> None:
        """`share`: share of the keys to simulate; 1: all."""
        self._world = len(trace.shards)
        self._share = share / PARTS if share < 1 else 1.0
        self._sample = Sample(trace, share) if share < 1 else None
        self._traces: Sequence[Trace] = self._sample.parts if self._sample else [trace]
        self._runs: list[Iterator[Block]] = []
        self._simulated: list[tuple[str, Setup, tuple[str, str], list[Totals]]] = []
        self._uses: dict[int, list[list[AllUses]]] = {}
        """Next uses of each worker's keys in each trace, by number of batches per block."""

    def simulate(self, size: str, setup: Setup, policies: tuple[str, str]) -> None:
        """Add a cell. `size`: name of the capacities and pace of `setup`."""
        fit, commit, capacities = setup.fit, setup.workflow.commit, Capacities.of(setup.fit.sizes, setup.storage)
        if self._sample:
            capacities = capacities.sampled(self._share)
        simulations = [
            Simulation(trace, capacities, policies, fit.look_ahead, fit.block_batches, commit.every_blocks, commit.keep)
            for trace in self._traces
        ]
        self._runs += [simulation.steps() for simulation in simulations]
        self._simulated.append((size, setup, policies, [simulation.totals for simulation in simulations]))

    def look_at(self, block_batches: int) -> None:
        """Collect the next uses of all keys, to compute bounds."""
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
        """Run all simulations concurrently: the one that is farthest behind always runs next, so that each block is
        read about once. `say` is called each time all simulations have passed another tenth of the examples."""
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
        """Yield the cells in the order in which they were added. All simulations must have run."""
        for size, setup, policies, totals in self._simulated:
            yield self._cell(size, setup.fit.sizes, policies, totals)

    def _cell(self, size: str, sizes: Sizes, policies: tuple[str, str], totals: list[Totals]) -> Cell:
        stopped = next((of_part.stopped.message for of_part in totals if of_part.stopped), None)
        counts, errors = totals[0].counts(), dict[str, float]()
        if self._sample:
            counts, errors = estimate_counts(list(zip(self._sample.parts, totals, strict=True)))
        chunks = sum(of_part.chunks for of_part in totals) // len(totals)
        device, host, disk = (self._world * n for n in (sizes.device_rows, sizes.host_rows, sizes.disk_chunks))
        whole = Capacities(device, host, chunk_rows=sizes.chunk_rows, disk_chunks=disk)
        return Cell(size, policies, whole, sizes.row_bytes, counts, chunks, errors, stopped)

    def bounds(self, size: str, fit: Fit) -> BoundCell:
        """Return the bounds of a size. All simulations must have run, and `look_at` must have collected the keys of
        this block size."""
        sizes, memory = fit.sizes, fit.sizes.device_rows + fit.sizes.host_rows
        device, both = (self._bound(fit.block_batches, rows) for rows in (sizes.device_rows, memory))
        return BoundCell(size, self._world * memory * sizes.row_bytes, device, both)

    def _bound(self, block_batches: int, rows: int) -> Bound:
        capacity = max(1, round(self._share * rows))
        of_all = self._uses[block_batches]
        total = sum((belady(uses, capacity) for of_workers in of_all for uses in of_workers), Bound())
        if not self._sample:
            return total
        blocks = self._traces[0].agenda.blocks(block_batches)
        return scale_bound(total, PARTS * self._share, sum(map(self._sample.num_keys, blocks)))
