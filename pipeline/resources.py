"""What one worker holds open, and the binding of stage functions to it: tiers, rings, model, blocks in flight.

A start of the pipeline gives each stage the blocks of its range once, in order; anything else raises, since stages
have state. Dask may run a task again, and then must be told no.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.device import Device
from pipeline.kernels.init_rows import init_rows
from pipeline.memory import aligned_empty
from pipeline.models.learner import Learner, row_layout
from pipeline.monitor.metrics import Evaluation
from pipeline.on_gpu import OnGpu
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
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.stages.plan import Room, plan
from pipeline.stages.prefetch import prefetch
from pipeline.stages.read import read
from pipeline.stages.train import train
from pipeline.stages.write_back import write_back
from pipeline.storage.chunks import Chunks
from pipeline.storage.commits import Commits, Manifest
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.explain import no_room
from pipeline.storage.places import Caps, Places
from pipeline.storage.reopen import open_log
from pipeline.storage.shards import ONE_SHARD, Shards
from pipeline.storage.sizes import Sizes
from pipeline.storage.slab import Slab
from pipeline.threads import Threads, Whole, share_of
from pipeline.workflow import Workflow


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

    def __init__(
        self,
        workflow: Workflow,
        source: Source,
        sizes: Sizes,
        run_dir: Path,
        commits: Commits,
        kept: Sequence[Manifest],
        speed: DiskSpeed,
        device: Device,
        shards: Shards = ONE_SHARD,
    ) -> None:
        """Open these shards of the last of the `kept` commits of the run directory; without one, begin with an empty
        table."""
        self.device = device
        self.row = row_layout(workflow)
        self.sizes = sizes
        self.source = source
        words = self.row.num_words
        self.threads = Whole() if device.on_gpu else Threads(workflow.schedule.threads)
        self.slab = Slab(sizes.device_rows, words, self.threads, device=device)
        self.host = Slab(sizes.host_rows, words, name="host")
        self.chunk_RW: U32 = aligned_empty((sizes.chunk_rows, words), np.uint32)
        self._staging: U32 = device.pinned((sizes.staging_rows, words), np.uint32)
        self._outgoing: U32 = device.pinned((sizes.outgoing_rows, words), np.uint32)
        self._gpu = OnGpu(source.layout, sizes, device) if device.on_gpu else None
        self._leaving = self._gpu.leaving if self._gpu else self._outgoing
        storage = workflow.storage
        chunks = Chunks(sizes.chunk_rows, storage.log_multiple, storage.log_growth, shards)
        caps = Caps(sizes.disk_chunks, sizes.map_bytes)
        self.places = Places(sizes.device_rows, sizes.host_rows, storage.policy, caps, chunks)
        self.log = open_log(run_dir / "table.zarr", self.row, self.places, kept, speed, commits.files, storage.direct)
        evaluation = Evaluation(workflow.data.labels, run_dir / "scores", grouped=workflow.metrics.group is not None)
        self.learner = Learner(
            workflow, source.layout, self.slab, evaluation, self.threads, device,
            -(-source.num_examples["train"] // workflow.schedule.batch_size),
        )  # fmt: skip
        self._seed = np.uint64(workflow.seed)
        self._init_std = workflow.model.init_std
        self._dedup_threads = Threads(share_of(workflow.schedule.threads), "dedup")
        self._work = Workspace(source.layout, self._dedup_threads)
        self._rings = RingLengths(0, 0, 0)
        self._flights: dict[int, Flight] = {}
        self._unasked: deque[Trained] = deque()
        """Trained, and not yet asked what was found."""
        self.pause: str | None = None
        """Why no further block is to be planned; set by the driver, from any thread."""
        if kept:
            self.learner.load(commits.load_dense(kept[-1]))

    @property
    def stages(self) -> Sequence[str]:
        """Without a GPU `upload` has nothing to do."""
        return STAGES if self._gpu else tuple(stage for stage in STAGES if stage != "upload")

    def start(self, blocks: Sequence[Block], look_ahead: int, rings: RingLengths | None = None) -> None:
        """Divide the rings for this look-ahead and expect the first of `blocks`. Only while nothing is in flight."""
        rings = rings or RingLengths.of(look_ahead)
        self._blocks = {block.number: block for block in blocks}
        self._last = blocks[-1].number
        self._look_ahead = look_ahead
        if rings != self._rings:
            self._flights.clear()
            buffer_bytes = self.sizes.read_buffer_bytes(rings.read)
            self._read_ring: list[ReadBuffer] = []
            self._read_ring = [ReadBuffer(buffer_bytes, self.device.pinned) for _ in range(rings.read)]
            if self._gpu:
                try:
                    self._gpu.start(rings.read, buffer_bytes)
                except MemoryError as error:
                    raise PipelineError(no_room(error, self.sizes, look_ahead, self.device)) from error
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
            progressed = self._ask(stage, number)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            # torch's is no MemoryError, CuPy's is.
            if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                what = no_room(error, self.sizes, self._look_ahead, self.device)
            raise PipelineError(f"{stage} of block {number} failed: {what}") from error
        span = Span(stage, number, start, time.perf_counter(), cpu_clock() - cpu, ready)
        return self._done(stage, number, span, record, progressed)

    def _expect(self, stage: str, number: int) -> None:
        expected = self._next[stage]
        if number != expected:
            raise PipelineError(f"{stage} was called for block {number}, but its next is {expected}: it has state")
        self._next[stage] = number + 1

    def _done(self, stage: str, number: int, span: Span, record: object, progressed: Progressed | None) -> Done:
        match record:
            case Refusal() if stage == "plan":
                return Done(stage, number, span, refusal=record)
            case Plan():
                return Done(stage, number, span, moves=record.moves)
        return Done(stage, number, span, trained=progressed)

    def _ask(self, stage: str, number: int) -> Progressed | None:
        """What a block came to, once that is known: in RAM after its `train`; on a GPU after the next block's
        `write_back`, which has waited for a swap that comes behind all of its steps."""
        known = number - 1 if self._gpu else number
        asks = stage == ("write_back" if self._gpu else "train")
        if not asks or not self._unasked or self._unasked[0].block.number > known:
            return None
        return _found(self._unasked.popleft())

    def drain(self) -> list[Done]:
        """Wait for the device; what was not told yet of the blocks that are through. PipelineError: one failed."""
        try:
            spans = [Done(span.stage, span.number, span) for span in self.device.drain()]
            last = [Done("train", t.block.number, trained=_found(t)) for t in self._unasked]
        except Exception as error:
            raise PipelineError(f"train failed: {type(error).__name__}: {error}") from error
        self._unasked.clear()
        return spans + last

    def _read(self, i: int) -> Examples | Refusal:
        if i in self._flights:
            return self._flights[i].examples
        flight = self._flights[i] = Flight(self._blocks[i])
        flight.examples = read(flight.block, self.source, self._read_ring[i % self._rings.read])
        return flight.examples

    def _dedup(self, i: int) -> Unique | Pending | Refusal:
        flight = self._flights[i]
        if flight.unique is None and self._gpu:
            flight.unique = self._gpu.dedup(i, flight.examples, self._read_ring[i % self._rings.read])
        elif flight.unique is None:
            flight.unique = dedup(flight.examples, self._work)
        return flight.unique

    def _unique(self, i: int) -> Unique | Refusal:
        """The working set, for which `plan` may have to wait."""
        flight = self._flights[i]
        if isinstance(flight.unique, Pending):
            flight.unique = flight.unique.get()
        return flight.unique

    def _plan(self, i: int) -> Plan | Refusal:
        window = range(i, min(i + self._look_ahead, self._last) + 1)
        planned: Plan | Refusal
        if self.pause:
            planned = Refusal(self._blocks[i], "pause", self.pause)
        else:
            planned = plan([self._unique(j) for j in window], self.places, self._room)
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
        flight = self._flights[i]
        if self._gpu:
            arriving_RW = _slice(self._gpu.arriving, i % self._rings.staging, self._room.staging_rows)
            flight.staged = self._gpu.upload(flight.plan, flight.staged, arriving_RW)
        return flight.staged

    def _train(self, i: int) -> Trained:
        flight = self._flights[i]
        leaving_RW, outgoing_RW = (
            _slice(ring, i % self._rings.outgoing, self._room.outgoing_rows) for ring in (self._leaving, self._outgoing)
        )
        flight.trained = train(
            flight.plan, flight.examples, flight.unique, flight.staged, self.slab, leaving_RW, outgoing_RW,
            self.learner, self.device,
        )  # fmt: skip
        if self._gpu:
            self._gpu.trained(i)
        self._unasked.append(flight.trained)
        return flight.trained

    def _write_back(self, i: int) -> Written:
        flight = self._flights.pop(i)
        return write_back(flight.plan, flight.trained, self.host, self.log, self.chunk_RW)

    def close(self) -> None:
        """Give back threads, files and memory. May be called twice."""
        self.threads.close()
        self._dedup_threads.close()
        for tier in (self.slab, self.host, self.log):
            tier.close()
        self.learner.close()
        self._flights.clear()
        self._unasked.clear()
        self._read_ring, self._gpu = [], None
        self._staging = self._outgoing = self._leaving = self.chunk_RW = self.chunk_RW[:0].copy()


def _found(trained: Trained) -> Progressed:
    assert trained.found
    return trained.found()


def _slice(ring_RW: U32, at: int, rows: int) -> U32:
    return ring_RW[at * rows : (at + 1) * rows]
