"""The stages of one worker: buffer rings, blocks in flight, and the binding of each stage function to them.

Within a stretch, each stage must be called exactly once for each block, in order; any other call raises, since stages
are stateful. Dask may rerun a task; the second call is refused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pipeline.comm.group import Disconnected
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.errors import LostTouch, OutOfTurn, PipelineError
from pipeline.machine.stopwatch import take_parts
from pipeline.machine.threads import Threads, share_of
from pipeline.preflight.sizes import no_room
from pipeline.records import (
    U32,
    U64,
    Block,
    BlockResult,
    Examples,
    OwnedKeys,
    Plan,
    Refusal,
    StageCall,
    Staged,
    StageResult,
    Trained,
    Unique,
)
from pipeline.stages import STAGES
from pipeline.stages.dedup import KeyOwners, Workspace
from pipeline.stages.plan import RingRows, plan
from pipeline.stages.prefetch import prefetch
from pipeline.stages.read import read
from pipeline.stages.scan import Scanner, scan
from pipeline.stages.train import move, train
from pipeline.stages.unique_keys import KeyReader
from pipeline.stages.unite import STOPPED_ELSEWHERE
from pipeline.stages.write_back import write_back
from pipeline.storage.places import Places
from pipeline.storage.tier import write_first_rows
from pipeline.worker.flight import Flight, RingLengths, expect, read_already
from pipeline.worker.peers import FirstRefused, OtherWorkers, Peers
from pipeline.worker.placement import OnGpu, OnHost
from pipeline.worker.tiers import Membership, Tiers
from pipeline.worker.timed_tier import TimedTier
from pipeline.workflow import Workflow


class Foresight:
    """Reads the keys of coming blocks and adds them to the next uses in `places`."""

    def __init__(self, workflow: Workflow, source: Source, places: Places, owners: KeyOwners | None, rank: int) -> None:
        storage, threads = workflow.storage, share_of(workflow.schedule.threads)
        self._reader = KeyReader(workflow.data, workflow.seed, threads, source.as_begun)
        self._scanner = Scanner(self._unique_keys, storage.known_examples, storage.known)
        self._places, self._owners, self._rank = places, owners, rank
        self.coming: Sequence[Block] = ()
        """Blocks that follow the next stretch, as far as `scan` needs them."""
        self.scanned = -1
        """Number of the last block for which `scan` has run."""

    @property
    def least_known(self) -> int | None:
        return self._scanner.least_known

    def begin(self, blocks: Sequence[Block]) -> None:
        self._scanner.begin([*blocks, *self.coming], self._places.next_uses)
        self.scanned = -1

    def scan(self, block: Block) -> None:
        scan(block, self._scanner, self._places)
        self.scanned = block.number

    def _unique_keys(self, block: Block) -> U64:
        """Unique keys, in this worker's shards, that any worker needs for the block."""
        keys_U = self._reader.distinct_keys(block)
        return keys_U if self._owners is None else keys_U[self._owners.of(keys_U) == self._rank]

    def close(self) -> None:
        self._reader.close()


class StageRunner:
    """Runs the stages. Opened once per run; call `start` for each stretch."""

    def __init__(self, workflow: Workflow, source: Source, tiers: Tiers, membership: Membership | None = None) -> None:
        self.source, self.tiers = source, tiers
        device, sizes = tiers.device, tiers.sizes
        owners = KeyOwners(membership.owner_of_shard, membership.rank.world) if membership else None
        self._dedup_threads = Threads(share_of(workflow.schedule.threads), "dedup")
        work = Workspace(source.layout, self._dedup_threads, owners)
        self._staging: U32 = device.pinned((sizes.staging_rows, tiers.row.num_words), np.uint32)
        self._outgoing: U32 = device.pinned((sizes.outgoing_rows, tiers.row.num_words), np.uint32)
        self._placement: OnHost | OnGpu = OnHost(self._outgoing, work)
        if device.on_gpu:
            self._placement = OnGpu(source.layout, sizes, device, work if membership else None)
        self._peers = Peers()
        if membership and owners:
            counts = tiers.learner.rows.counts_examples
            num_tasks = len(workflow.data.labels) if workflow.data.tasks else 0
            self._peers = OtherWorkers(membership, owners, source.layout.num_fields, counts, num_tasks)
        rank = self._peers.rank.number
        self.foresight = Foresight(workflow, source, tiers.places, owners, rank) if tiers.foresees else None
        idle = self._placement.idle | self._peers.idle | (frozenset() if self.foresight else frozenset({"scan"}))
        self.names: Sequence[str] = tuple(stage for stage in STAGES if stage not in idle)
        """Names of the stages that are not idle on this worker."""
        self._host, self._log = TimedTier(tiers.host, "host copy"), TimedTier(tiers.log, "disk")
        self._new_rows = partial(write_first_rows, tiers.row, workflow.seed, workflow.model.init_std)
        self._rings, self._buffer_bytes = RingLengths(0, 0, 0), 0
        self._flights: dict[int, Flight] = {}
        self.num_cut: int | None = 0 if source.layout.num_lists else None
        """Number of truncated sequences in the examples of all trained or scored blocks."""
        self._unreported = Unreported(*self._placement.reported_by)
        self.pause: str | None = None
        """Reason why no further block may be planned, or None. The driver sets it from any thread."""

    def start(self, blocks: Sequence[Block], look_ahead: int, rings: RingLengths | None = None) -> None:
        """Divide the rings for this look-ahead, and expect the first of `blocks` next. Nothing may be in flight."""
        rings, sizes = rings or RingLengths.of(look_ahead), self.tiers.sizes
        self._blocks = {block.number: block for block in blocks}
        self._last, self._look_ahead = blocks[-1].number, look_ahead
        buffer_bytes = sizes.read_buffer_bytes(rings.read)
        if (rings, buffer_bytes) != (self._rings, self._buffer_bytes):
            self._flights.clear()
            self._read_ring: list[ReadBuffer] = []
            self._read_ring = [ReadBuffer(buffer_bytes, self.tiers.device.pinned) for _ in range(rings.read)]
            try:
                self._placement.start(rings.read, buffer_bytes)
            except MemoryError as error:
                raise PipelineError(no_room(error, sizes, look_ahead, self.tiers.device)) from error
        if self.foresight:
            self.foresight.begin(blocks)
        self._rings, self._buffer_bytes = rings, buffer_bytes
        self._room = RingRows(sizes.staging_rows // rings.staging, sizes.outgoing_rows // rings.outgoing)
        self._flights = read_already(self._flights, self._blocks) if self._peers.keeps_reads else {}
        self._next = dict.fromkeys(STAGES, blocks[0].number)
        self._refused = FirstRefused(self._last + 1, self._last + 1)
        self._num_staged = blocks[0].number
        self.tiers.learner.prepare(blocks)

    def run(self, stage: str, number: int, cpu_clock: Callable[[], float] = time.thread_time) -> StageResult:
        """Run one stage of one block. Raises OutOfTurn if this is not the next block of the stage, LostTouch if another
        worker is gone, and PipelineError, which names stage and block, if the stage fails."""
        self._expect(stage, number)
        if number >= self._refused.here and not self._peers.must_run(self._refused, stage, number):
            return StageResult(stage, number)
        ready = self._num_staged - number - 1
        take_parts()
        cpu, start, task = cpu_clock(), time.perf_counter(), f"{stage} of block {number}"
        try:
            record: Refusal | Plan | None = getattr(self, f"_{stage}")(number)
            trained = self._unreported.after(stage, number) if number < self._refused.anywhere else None
            task = f"train of block {trained.block.number}" if trained else task
            block_result = _found(trained) if trained else None
        except Exception as error:
            kind = LostTouch if isinstance(error, Disconnected) else PipelineError
            why = failure_text(error, self.tiers, self._look_ahead)
            raise kind(f"{task} failed: {why}") from error
        call = StageCall(stage, number, start, time.perf_counter(), cpu_clock() - cpu, ready, take_parts())
        match record:
            case Refusal():
                return StageResult(stage, number, call, refusal=record)
            case Plan():
                return StageResult(stage, number, call, moves=record.moves)
        return StageResult(stage, number, call, trained=block_result)

    def _expect(self, stage: str, number: int) -> None:
        expected = self._next[stage]
        if number != expected:
            raise OutOfTurn(f"{stage} was called for block {number}, but its next is {expected}: it has state")
        self._next[stage] = number + 1

    def drain(self) -> list[StageResult]:
        """Wait for the device, and return the results of finished blocks not yet reported. Raises PipelineError if a
        block failed."""
        self.tiers.learner.settle()
        try:
            calls = [StageResult(call.stage, call.number, call) for call in self.tiers.device.drain()]
            return calls + self._unreported.take_all()
        except Exception as error:
            raise PipelineError(f"train failed: {type(error).__name__}: {error}") from error

    def _buffer(self, i: int) -> ReadBuffer:
        return self._read_ring[i % self._rings.read]

    def _read(self, i: int) -> None:
        if i not in self._flights:
            flight = self._flights[i] = Flight(self._blocks[i])
            flight.examples = read(flight.block, self.source, self._buffer(i), self._peers.rank)

    def _dedup(self, i: int) -> None:
        flight = self._flights[i]
        if flight.unique is None:
            assert flight.examples
            flight.unique = self._placement.dedup(i, flight.examples, self._buffer(i))
        self._peers.pack(flight)

    def _unite(self, i: int) -> None:
        flight = self._flights.get(i) or Flight(self._blocks[i])
        self._peers.unite(flight, i >= self._refused.here)

    def _scan(self, i: int) -> None:
        expect(Foresight, self.foresight).scan(self._blocks[i])

    def _plan(self, i: int) -> Plan | Refusal:
        assert not self.foresight or i <= self.foresight.scanned, "expected the keys that scan adds, got None"
        window = range(i, min(i + self._look_ahead, self._last) + 1)
        if self.pause or i >= self._refused.anywhere:
            planned: Plan | Refusal = Refusal(self._blocks[i], "pause", self.pause or STOPPED_ELSEWHERE)
        else:
            working_sets: list[Unique | OwnedKeys | Refusal] = [self._peers.take(self._flights[j]) for j in window]
            planned = plan(working_sets, self.tiers.places, self._room)
        if isinstance(planned, Refusal):
            self._refused.here = i
        self._flights[i].plan = planned
        return planned

    def _prefetch(self, i: int) -> None:
        flight = self._flights[i]
        staging_RW = self._staging[_slots(i % self._rings.staging, self._room.staging_rows)]
        flight.staged = prefetch(expect(Plan, flight.plan), self._host, self._log, staging_RW, self._new_rows)
        self._num_staged = i + 1

    def _upload(self, i: int) -> None:
        slots = _slots(i % self._rings.staging, self._room.staging_rows)
        self._placement.upload(i, self._flights[i], self._buffer(i), slots)

    def _train(self, i: int) -> None:
        weights_K: Sequence[float] | None = None
        if i < self._refused.anywhere:
            weights_K = self._peers.agree(self._blocks[i], self._flights.get(i), self._refused)
            if weights_K is None:
                self._refused.anywhere = i
        if i >= self._refused.here:
            return
        flight, tiers = self._flights[i], self.tiers
        planned, staged = expect(Plan, flight.plan), expect(Staged, flight.staged)
        slots = _slots(i % self._rings.outgoing, self._room.outgoing_rows)
        leaving_RW, outgoing_RW = self._placement.leaving[slots], self._outgoing[slots]
        if weights_K is None:
            flight.trained = move(planned, staged, tiers.slab, leaving_RW, outgoing_RW, tiers.device)
            return
        flight.trained = train(
            planned, expect(Examples, flight.examples), expect(Unique, flight.unique), staged, tiers.slab, leaving_RW,
            outgoing_RW, tiers.learner, tiers.device,
            expect(OwnedKeys, flight.owned_keys) if flight.owned_keys else None, weights_K,
        )  # fmt: skip
        if self.num_cut is not None:
            self.num_cut += expect(Examples, flight.examples).num_cut
        self._placement.trained(i)
        self._unreported.append(flight.trained)
        self._peers.after_train(staged)

    def _write_back(self, i: int) -> None:
        flight, chunk_RW = self._flights.pop(i), self.tiers.chunk_RW
        write_back(expect(Plan, flight.plan), expect(Trained, flight.trained), self._host, self._log, chunk_RW)

    def close(self) -> None:
        """Release threads and memory. May be called twice."""
        self._dedup_threads.close()
        if self.foresight:
            self.foresight.close()
        self._flights.clear()
        self._unreported.clear()
        self._read_ring = []
        self._placement.close()
        self._staging = self._outgoing = self._staging[:0].copy()


class Unreported(deque[Trained]):
    """Trained blocks with results not yet fetched: a result is available after a later stage, on a GPU some blocks
    later."""

    def __init__(self, stage: str, later: int) -> None:
        """The result of block i is available after this stage of block i + `later`."""
        super().__init__()
        self._stage, self._later = stage, later

    def after(self, stage: str, number: int) -> Trained | None:
        """Remove and return the next block if its result is available after this stage of block `number`, else None."""
        if stage != self._stage or not self or self[0].block.number > number - self._later:
            return None
        return self.popleft()

    def take_all(self) -> list[StageResult]:
        """Remove and return all results. Call only after the device has finished."""
        results = [StageResult("train", trained.block.number, trained=_found(trained)) for trained in self]
        self.clear()
        return results


def _found(trained: Trained) -> BlockResult:
    assert trained.found
    return replace(trained.found(), block=trained.block)


def failure_text(error: Exception, tiers: Tiers, look_ahead: int) -> str:
    """Text for the exception of a stage; if memory ran out, a table of memory use."""
    # CuPy's OutOfMemoryError is a MemoryError; torch's is not.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return no_room(error, tiers.sizes, look_ahead, tiers.device)
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def _slots(at: int, rows: int) -> slice:
    """Rows of buffer number `at` of a ring."""
    return slice(at * rows, (at + 1) * rows)
