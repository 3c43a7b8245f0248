"""One worker of a run: the methods that the driver calls, in its own process or, through Dask, in another one."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pipeline.commits.flush import fingerprint, flush, part_of, table_hash
from pipeline.commits.manifest import Manifest
from pipeline.commits.reopen import clean
from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.machine.limits import resident_bytes
from pipeline.records import U64, Array, Block, StageResult
from pipeline.storage.files import Files
from pipeline.training.dense_state import dense_bytes
from pipeline.worker.stage_runner import StageRunner
from pipeline.worker.tiers import Membership, Tiers, WorkerConfig
from pipeline.workflow import Workflow


@dataclass(frozen=True, slots=True)
class CommitPart:
    """A worker's part of a commit. Its files are durable, but no manifest names them yet."""

    part: Manifest
    changed: int
    merged: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """Sizes and traffic of a worker, for `result.json`."""

    map_bytes: int
    device_rows: int
    host_rows: int
    row_bytes: int
    disk_bytes: int
    disk_cap_bytes: int
    traffic: dict[str, tuple[int, int]]
    """Payload bytes and messages sent to other workers, by kind."""
    cut: int | None = None
    """Number of sequences longer than their `max_length` in the examples trained on or scored in this session; None if
    the workflow has no sequences."""


class Worker:
    """One worker of a run. Calls of its methods do not overlap, except `pause`, which may be called at any time, and
    the methods of `stages`, which the executor calls from several threads."""

    def __init__(
        self, workflow: Workflow, config: WorkerConfig, source: Source, device: Device, files: Files,
        membership: Membership | None = None,
    ) -> None:  # fmt: skip
        """Raises MemoryError if the tiers do not fit, and ValueError or Damaged if the last commit cannot be opened."""
        self._config, self._files, self._membership = config, files, membership
        rank = membership.rank.number if membership else 0
        self._reserve = config.run_dir / (f"reserve-{rank}" if membership else "reserve")
        """File that reserves disk space for this worker's part of the next commit."""
        self._numbers = workflow.optimizer.numbers_a_parameter
        # With k-step Adam, a commit contains the dense part of every worker, otherwise that of the first.
        self._writes_dense = rank == 0 or workflow.optimizer.merge is not None
        self.tiers = Tiers(workflow, config, source, device, files, membership)
        self.stages = StageRunner(workflow, source, self.tiers, membership)
        """Stages, called by the executor while the driver may call `pause`."""

    def tidy(self) -> None:
        """Delete leftovers of the previous session, and reserve disk space for the next commit."""
        self.release_reserve()
        clean(self.tiers.log.path, self._config.kept, self._files, self._config.shards)
        self._hold_reserve()

    def announce(self, coming: Sequence[Block]) -> None:
        """Record the blocks that follow those of the next `start`, as far as `scan` needs them."""
        if self.stages.foresight:
            self.stages.foresight.coming = coming

    def least_known(self) -> int | None:
        """Minimum number of examples beyond a block for which keys were known while storage.known was full; None if it
        never was."""
        return self.stages.foresight.least_known if self.stages.foresight else None

    def start(self, blocks: Sequence[Block], look_ahead: int) -> Sequence[str]:
        """Start a stretch of these blocks. Returns the names of the stages that are not idle on this worker."""
        self.stages.start(blocks, look_ahead)
        return self.stages.names

    def drain(self) -> list[StageResult]:
        return self.stages.drain()

    def raise_caps(self, map_bytes: int, read_ring_bytes: int) -> None:
        """Let the key map and the read ring become larger. Nothing may be in flight."""
        r = self.tiers
        r.sizes = replace(r.sizes, map_bytes=map_bytes, read_ring_bytes=read_ring_bytes)
        r.places.caps = replace(r.places.caps, map_bytes=map_bytes)
        if not self._config.scores:
            # The next commit may now write more rows.
            self._hold_reserve()

    def resident_bytes(self) -> int:
        """Bytes of RAM that this worker's process uses."""
        return resident_bytes()

    def pause(self, why: str | None) -> None:
        """Stop planning blocks. `why`: the reason; None: resume planning."""
        self.stages.pause = why

    def set_learning_rates(self, rows: float, dense: float) -> None:
        """Set the learning rates, before warm-up, for all later steps."""
        self.tiers.learner.rows.lr, self.tiers.learner.dense.lr = rows, dense

    def flush(self, number: int) -> CommitPart:
        """Write all rows changed since the last commit, and return this worker's part of commit `number`. The pipeline
        must be drained."""
        self.release_reserve()
        r = self.tiers
        flushed = flush(r.places, r.slab, r.host, r.log, r.chunk_RW)
        r.log.sync()
        written_bytes, r.log.written_bytes = r.log.written_bytes, 0
        return CommitPart(part_of(r.places, r.log, number), flushed.changed, flushed.merged, written_bytes)

    def dense(self) -> dict[str, Array]:
        """Dense part with its optimizer state, and the history of learning rates: all learned state except the rows."""
        return self.tiers.learner.save()

    def settle(self, kept_chunks: Collection[int], at_least: int) -> None:
        """Clean up after a commit was published: delete the chunks not in `kept_chunks`. `at_least`: number of chunks
        by which the log must be able to grow before the next commit."""
        r = self.tiers
        r.log.describe(r.places.chunks.tails)
        r.log.remove(r.log.checksums.keys() - set(kept_chunks))
        r.places.chunks.keep(r.log.checksums)
        r.places.begin_growth(at_least)
        self._hold_reserve()

    def release_reserve(self) -> None:
        """Release the disk space reserved for the next commit; `tidy` reserves it again on resume."""
        if os.path.lexists(self._reserve):
            self._files.remove(self._reserve)

    def _hold_reserve(self) -> None:
        r = self.tiers
        # If the cap leaves less than this, `plan` refuses the next block, and the commit that follows has less to
        # write.
        chunks = min(r.places.commit_chunks, r.places.caps.disk_chunks - r.places.chunks.present)
        dense = dense_bytes(r.learner.model, self._numbers) if self._writes_dense else 0
        self._files.reserve(self._reserve, max(0, chunks) * r.log.chunk_bytes + dense)

    def table_hash(self) -> tuple[int, int]:
        """Return the hash of all rows, and the number of rows. All rows must be in the log: call after taking or
        opening a commit."""
        r = self.tiers
        return table_hash(r.places, r.log, r.chunk_RW, r.learner.rows.catch_up_on_host())

    def fingerprint(self, table: int) -> str:
        """Return the fingerprint of a table with hash `table` and of this worker's dense part."""
        return fingerprint(table, self.tiers.learner.dense_part.state())

    def model(self) -> dict[str, Array]:
        """Parameters and buffers of the dense part used for scoring."""
        return self.tiers.learner.dense_part.scoring_state()

    def scores(self, number: int, table: int) -> U64 | None:
        """Return the next piece of scores; see `BlockMetrics.scores`."""
        return self.tiers.learner.block_metrics.scores(number, table)

    def report(self) -> Report:
        r = self.tiers
        traffic = self._membership.group.traffic if self._membership else {}
        return Report(
            r.places.map.num_bytes, r.sizes.device_rows, r.sizes.host_rows, r.row.num_bytes,
            r.places.chunks.present * r.log.chunk_bytes, r.sizes.disk_chunks * r.log.chunk_bytes,
            {kind: (sent.num_bytes, sent.messages) for kind, sent in traffic.items() if sent.num_bytes},
            self.stages.num_cut,
        )  # fmt: skip

    def close(self) -> None:
        """Release threads, files and memory. May be called twice."""
        self.stages.close()
        self.tiers.close()
