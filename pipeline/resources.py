"""What one worker holds open, and the binding of stage functions to it: tiers, rings, model, blocks in flight.

A start of the pipeline gives each stage the blocks of its range once, in order; anything else raises, since stages
have state. Dask may run a task again, and then must be told no.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.kernels.init_rows import init_rows
from pipeline.memory import aligned_empty
from pipeline.models.learner import Learner, row_layout
from pipeline.models.state import load_dense
from pipeline.monitor.metrics import Evaluation
from pipeline.records import (
    U32,
    U64,
    Block,
    Done,
    Examples,
    Plan,
    Progressed,
    Refusal,
    Span,
    Staged,
    Trained,
    Unique,
    Written,
)
from pipeline.stages import STAGES
from pipeline.stages.dedup import Workspace, dedup
from pipeline.stages.plan import Room, plan
from pipeline.stages.prefetch import prefetch
from pipeline.stages.read import read
from pipeline.stages.train import train
from pipeline.stages.upload import upload
from pipeline.stages.write_back import write_back
from pipeline.storage.chunks import Chunks
from pipeline.storage.commits import Commits, Manifest
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.places import Caps, Places
from pipeline.storage.reopen import open_log
from pipeline.storage.sizes import Sizes
from pipeline.storage.slab import Slab
from pipeline.threads import Threads
from pipeline.workflow import Workflow

TRAINING_THREADS_PER_DEDUP_THREAD = 4
MOST_DEDUP_THREADS = 4
"""Beside training on all of two cores a second thread of `dedup` gains nothing, it takes from training. Where cores are
many, or a GPU trains, a block is through `dedup` in a fraction of the time."""


class PipelineError(RuntimeError):
    """A stage failed; names stage and block, and keeps the cause."""


@dataclass(slots=True)
class Flight:
    """One block on its way: the records that its stages returned."""

    block: Block
    examples: Any = None
    unique: Any = None
    plan: Any = None
    staged: Any = None
    trained: Any = None


@dataclass(frozen=True, slots=True)
class RingLengths:
    """Buffers of each ring. The schedule's edges allow no fewer."""

    read: int
    staging: int
    outgoing: int

    @classmethod
    def of(cls, look_ahead: int) -> RingLengths:
        return cls(2 * look_ahead + 1, look_ahead + 1, look_ahead + 1)


class Resources:
    """Opened once for a run; `start` begins each stretch of it."""

    stages: Sequence[str] = tuple(stage for stage in STAGES if stage != "upload")
    """Without a GPU `upload` has nothing to do."""

    def __init__(
        self,
        workflow: Workflow,
        source: Source,
        sizes: Sizes,
        run_dir: Path,
        commits: Commits,
        kept: Sequence[Manifest],
        speed: DiskSpeed,
    ) -> None:
        """Open the last of the `kept` commits of the run directory; without one, begin with an empty table."""
        self.row = row_layout(workflow)
        self.sizes = sizes
        self.source = source
        words = self.row.num_words
        self.threads = Threads(workflow.schedule.threads)
        self.device = Slab(sizes.device_rows, words, self.threads)
        self.host = Slab(sizes.host_rows, words, name="host")
        self.chunk_RW: U32 = aligned_empty((sizes.chunk_rows, words), np.uint32)
        self._staging: U32 = aligned_empty((sizes.staging_rows, words), np.uint32)
        self._outgoing: U32 = aligned_empty((sizes.outgoing_rows, words), np.uint32)
        storage = workflow.storage
        chunks = Chunks(sizes.chunk_rows, storage.log_multiple, storage.log_growth)
        caps = Caps(sizes.disk_chunks, sizes.map_bytes)
        self.places = Places(sizes.device_rows, sizes.host_rows, storage.policy, caps, chunks)
        self.log = open_log(run_dir / "table.zarr", self.row, self.places, kept, speed, commits.files, storage.direct)
        self.learner = Learner(
            workflow, source.layout, self.device, Evaluation(workflow.data.labels, run_dir / "scores"), self.threads
        )
        self._seed = np.uint64(workflow.seed)
        self._init_std = workflow.model.init_std
        self._dedup_threads = Threads(dedup_threads(workflow.schedule.threads), "dedup")
        self._work = Workspace(source.layout, self._dedup_threads)
        self._rings = RingLengths(0, 0, 0)
        self._flights: dict[int, Flight] = {}
        self.pause: str | None = None
        """Why no further block is to be planned; set by the driver, from any thread."""
        if kept:
            load_dense(self.learner.model, self.learner.optimizer, commits.load_dense(kept[-1]))

    def start(self, blocks: Sequence[Block], look_ahead: int, rings: RingLengths | None = None) -> None:
        """Divide the rings for this look-ahead and expect the first of `blocks`. Only while nothing is in flight."""
        rings = rings or RingLengths.of(look_ahead)
        self._blocks = {block.number: block for block in blocks}
        self._last = blocks[-1].number
        self._look_ahead = look_ahead
        if rings != self._rings:
            self._flights.clear()
            self._read_ring = [ReadBuffer(self.sizes.read_ring_bytes // rings.read) for _ in range(rings.read)]
        self._rings = rings
        self._room = Room(self.sizes.staging_rows // rings.staging, self.sizes.outgoing_rows // rings.outgoing)
        self._flights = self._read_already()
        self._next = dict.fromkeys(STAGES, blocks[0].number)
        self._refused = self._last + 1
        self._num_staged = blocks[0].number

    def _read_already(self) -> dict[int, Flight]:
        """Blocks that were read, perhaps deduplicated, and then refused by `plan`: they lie in their buffers still."""
        return {
            i: Flight(flight.block, flight.examples, flight.unique)
            for i, flight in self._flights.items()
            if self._blocks.get(i) == flight.block
        }

    def run(self, stage: str, number: int, cpu_clock: Callable[[], float] = time.thread_time) -> Done:
        """Run one stage of one block and say how it went."""
        self._expect(stage, number)
        if number >= self._refused:
            return Done(stage, number)
        ready = self._num_staged - number - 1
        cpu, start = cpu_clock(), time.perf_counter()
        try:
            record = getattr(self, f"_{stage}")(number)
        except Exception as error:
            raise PipelineError(f"{stage} of block {number} failed: {type(error).__name__}: {error}") from error
        span = Span(stage, number, start, time.perf_counter(), cpu_clock() - cpu, ready)
        return self._done(stage, number, span, record)

    def _expect(self, stage: str, number: int) -> None:
        expected = self._next[stage]
        if number != expected:
            raise PipelineError(f"{stage} was called for block {number}, but its next is {expected}: it has state")
        self._next[stage] = number + 1

    def _done(self, stage: str, number: int, span: Span, record: object) -> Done:
        match record:
            case Refusal() if stage == "plan":
                return Done(stage, number, span, refusal=record)
            case Plan():
                return Done(stage, number, span, moves=record.moves)
            case Trained():
                return Done(stage, number, span, trained=Progressed(record.block, record.loss, record.metrics))
        return Done(stage, number, span)

    def _read(self, i: int) -> Examples | Refusal:
        if i in self._flights:
            return self._flights[i].examples
        flight = self._flights[i] = Flight(self._blocks[i])
        flight.examples = read(flight.block, self.source, self._read_ring[i % self._rings.read])
        return flight.examples

    def _dedup(self, i: int) -> Unique | Refusal:
        flight = self._flights[i]
        flight.unique = flight.unique or dedup(flight.examples, self._work)
        return flight.unique

    def _plan(self, i: int) -> Plan | Refusal:
        window = range(i, min(i + self._look_ahead, self._last) + 1)
        planned: Plan | Refusal
        if self.pause:
            planned = Refusal(self._blocks[i], "pause", self.pause)
        else:
            planned = plan([self._flights[j].unique for j in window], self.places, self._room)
        if isinstance(planned, Refusal):
            self._refused = i
        self._flights[i].plan = planned
        return planned

    def _prefetch(self, i: int) -> Staged:
        flight = self._flights[i]
        staging_RW = _slice(self._staging, i % self._rings.staging, self._room.staging_rows)
        flight.staged = prefetch(flight.plan, self.host, self.log, staging_RW, self._init_rows)
        self._num_staged = i + 1
        return flight.staged

    def _init_rows(self, keys_U: U64, out_UW: U32) -> None:
        init_rows(keys_U, self._seed, self._init_std, self.row.embedding_dim, out_UW)

    def _upload(self, i: int) -> Staged:
        self._flights[i].staged = upload(self._flights[i].staged)
        return self._flights[i].staged

    def _train(self, i: int) -> Trained:
        flight = self._flights[i]
        outgoing_RW = _slice(self._outgoing, i % self._rings.outgoing, self._room.outgoing_rows)
        flight.trained = train(
            flight.plan, flight.examples, flight.unique, flight.staged, self.device, outgoing_RW, self.learner
        )
        return flight.trained

    def _write_back(self, i: int) -> Written:
        flight = self._flights.pop(i)
        return write_back(flight.plan, flight.trained, self.host, self.log, self.chunk_RW)

    def close(self) -> None:
        """Give back threads, files and memory. May be called twice."""
        self.threads.close()
        self._dedup_threads.close()
        self.source.close()
        for tier in (self.device, self.host, self.log):
            tier.close()


def dedup_threads(training_threads: int) -> int:
    return min(max(1, training_threads // TRAINING_THREADS_PER_DEDUP_THREAD), MOST_DEDUP_THREADS)


def _slice(ring_RW: U32, at: int, rows: int) -> U32:
    return ring_RW[at * rows : (at + 1) * rows]
