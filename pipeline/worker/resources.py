"""What one worker holds open, and the binding of stage functions to it: tiers, rings, model, blocks in flight.

A start of the pipeline gives each stage the blocks of its range once, in order; anything else raises, since stages
have state. Dask may run a task again, and then must be told no.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.comm.collective import ALONE
from pipeline.comm.group import Disconnected
from pipeline.comm.key_exchange import exchange
from pipeline.commits.manifest import Manifest
from pipeline.commits.reopen import open_log
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.errors import LostTouch, OutOfTurn, PipelineError
from pipeline.kernels.init_rows import init_rows
from pipeline.machine.memory import aligned_empty
from pipeline.machine.threads import Threads, Whole, share_of
from pipeline.monitor.metrics import Evaluation
from pipeline.preflight.memory_table import no_room
from pipeline.preflight.sizes import Sizes
from pipeline.records import (
    U32,
    U64,
    Array,
    Block,
    Done,
    Examples,
    Parcel,
    Plan,
    Progressed,
    Refusal,
    Share,
    Span,
    Staged,
    Trained,
    Unique,
    United,
    Written,
)
from pipeline.stages import STAGES
from pipeline.stages.dedup import Owners, Workspace, dedup
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.stages.plan import Room, plan
from pipeline.stages.prefetch import prefetch
from pipeline.stages.read import read
from pipeline.stages.train import move, train
from pipeline.stages.unite import STOPPED_ELSEWHERE, Union, parcels, unite
from pipeline.stages.write_back import write_back
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.layout import RowLayout
from pipeline.storage.places import Caps, Places
from pipeline.storage.shards import ONE_SHARD, Shards
from pipeline.storage.slab import Slab
from pipeline.training.learner import Learner
from pipeline.worker.flight import Flight, Member, RingLengths
from pipeline.worker.gpu_rings import OnGpu
from pipeline.workflow import Workflow


class Resources:
    """Opened once for a run; `start` begins each stretch of it."""

    def __init__(
        self,
        workflow: Workflow,
        source: Source,
        sizes: Sizes,
        row: RowLayout,
        steps_of_epoch: int,
        run_dir: Path,
        files: Files,
        kept: Sequence[Manifest],
        speed: DiskSpeed,
        device: Device,
        shards: Shards = ONE_SHARD,
        dense: Mapping[str, Array] | None = None,
        member: Member | None = None,
    ) -> None:
        """Open these shards of the last of the `kept` commits of the run directory, with the dense part that it has;
        without one, begin with an empty table."""
        self.device = device
        self._member = member
        self._share = member.share if member else Share()
        self._owners = Owners(member.owner_of_shard, member.share.world) if member else None
        self._union = Union()
        self.row = row
        self.sizes = sizes
        self.source = source
        words = self.row.num_words
        self.threads = Whole() if device.on_gpu else Threads(workflow.schedule.threads)
        self.slab = Slab(sizes.device_rows, words, self.threads, device=device)
        self.host = Slab(sizes.host_rows, words, name="host")
        self.chunk_RW: U32 = aligned_empty((sizes.chunk_rows, words), np.uint32)
        self._staging: U32 = device.pinned((sizes.staging_rows, words), np.uint32)
        self._outgoing: U32 = device.pinned((sizes.outgoing_rows, words), np.uint32)
        self._gpu = OnGpu(source.layout, sizes, device, alone=member is None) if device.on_gpu else None
        self._leaving = self._gpu.leaving if self._gpu else self._outgoing
        storage = workflow.storage
        chunks = Chunks(sizes.chunk_rows, storage.log_multiple, storage.log_growth, shards)
        caps = Caps(sizes.disk_chunks, sizes.map_bytes)
        self.places = Places(sizes.device_rows, sizes.host_rows, storage.policy, caps, chunks)
        self.log = open_log(run_dir / "table.zarr", self.row, self.places, kept, speed, files, storage.direct)
        evaluation = Evaluation(workflow.data.labels, run_dir / "scores", grouped=workflow.metrics.group is not None)
        self.learner = Learner(
            workflow, source.layout, self.slab, evaluation, self.threads, device, row,
            steps_of_epoch, member.of_steps if member else None, member.collective if member else ALONE,
        )  # fmt: skip
        self._seed = np.uint64(workflow.seed)
        self._init_std = workflow.model.init_std
        self._dedup_threads = Threads(share_of(workflow.schedule.threads), "dedup")
        self._work = Workspace(source.layout, self._dedup_threads, self._owners)
        self._rings = RingLengths(0, 0, 0)
        self._flights: dict[int, Flight] = {}
        self._unasked: deque[Trained] = deque()
        """Trained, and not yet asked what was found."""
        self.pause: str | None = None
        """Why no further block is to be planned; set by the driver, from any thread."""
        if dense is not None:
            self.learner.load(dense)

    @property
    def stages(self) -> Sequence[str]:
        """Without a GPU `upload` has nothing to do, without other workers `unite`."""
        idle = {"upload": not self._gpu, "unite": not self._member}
        return tuple(stage for stage in STAGES if not idle.get(stage))

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
        self._refused = self._stopped = self._last + 1
        self._num_staged = blocks[0].number

    def _read_already(self) -> dict[int, Flight]:
        """Blocks that were read, perhaps deduplicated, and then refused by `plan`: they lie in their buffers still.
        Where another worker refused, later blocks may have taken the buffers of earlier ones."""
        if self._member:
            return {}
        return {
            i: Flight(flight.block, flight.examples, flight.unique)
            for i, flight in self._flights.items()
            if self._blocks.get(i) == flight.block
        }

    def run(self, stage: str, number: int, cpu_clock: Callable[[], float] = time.thread_time) -> Done:
        """Run one stage of one block and say how it went."""
        self._expect(stage, number)
        if number >= self._refused and not self._is_expected_by_others(stage, number):
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
            kind = LostTouch if isinstance(error, Disconnected) else PipelineError
            raise kind(f"{stage} of block {number} failed: {what}") from error
        span = Span(stage, number, start, time.perf_counter(), cpu_clock() - cpu, ready)
        return self._done(stage, number, span, record, progressed)

    def _is_expected_by_others(self, stage: str, number: int) -> bool:
        """Whether other workers wait in a collective of this stage, though here the block was refused."""
        member = self._member
        return member is not None and (
            (stage == "train" and number <= self._stopped) or (stage == "unite" and member.mail is not None)
        )

    def _expect(self, stage: str, number: int) -> None:
        expected = self._next[stage]
        if number != expected:
            raise OutOfTurn(f"{stage} was called for block {number}, but its next is {expected}: it has state")
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
        `write_back`, which has waited for a swap that comes behind all of its steps. Not after that of a block which
        another worker refused: then `drain` tells it, on all workers."""
        known = number - 1 if self._gpu else number
        asks = stage == ("write_back" if self._gpu else "train") and number < self._stopped
        if not asks or not self._unasked or self._unasked[0].block.number > known:
            return None
        return self._found(self._unasked.popleft())

    def drain(self) -> list[Done]:
        """Wait for the device; what was not told yet of the blocks that are through. PipelineError: one failed."""
        try:
            spans = [Done(span.stage, span.number, span) for span in self.device.drain()]
            last = [Done("train", t.block.number, trained=self._found(t)) for t in self._unasked]
        except Exception as error:
            raise PipelineError(f"train failed: {type(error).__name__}: {error}") from error
        self._unasked.clear()
        return spans + last

    def _found(self, trained: Trained) -> Progressed:
        assert trained.found
        return replace(trained.found(), block=trained.block)

    def _read(self, i: int) -> Examples | Refusal:
        if i in self._flights:
            return self._flights[i].examples
        flight = self._flights[i] = Flight(self._blocks[i])
        flight.examples = read(flight.block, self.source, self._read_ring[i % self._rings.read], self._share)
        return flight.examples

    def _dedup(self, i: int) -> Unique | Pending | Refusal:
        flight = self._flights[i]
        if flight.unique is None and self._gpu and not self._member:
            flight.unique = self._gpu.dedup(i, flight.examples, self._read_ring[i % self._rings.read])
        elif flight.unique is None:
            flight.unique = dedup(flight.examples, self._work)
        if self._owners:
            self._pack(flight, self._owners)
        return flight.unique

    def _pack(self, flight: Flight, owners: Owners) -> None:
        if isinstance(flight.unique, Refusal):
            flight.parcels = [flight.unique] * owners.world
        else:
            num_fields, counts = self.source.layout.num_fields, self.learner.rows.counts_holders
            flight.parcels = parcels(flight.unique, owners, num_fields, counts)

    def parcel(self, i: int, owner: int) -> Parcel | Refusal | None:
        """What another worker is to be sent of block i; None where nobody needs it any more: the block is through, or
        its `dedup` came after a refusal."""
        flight = self._flights.get(i)
        parcel: Parcel | Refusal | None = flight.parcels[owner] if flight and flight.parcels else None
        if self._member and owner != self._share.rank and isinstance(parcel, Parcel):
            self._member.group.count("keys", parcel.num_bytes, 1)
        return parcel

    def deliver(self, i: int, received: Sequence[Parcel | Refusal | None]) -> None:
        """What all workers, in the order of ranks, sent of block i; `unite` takes it."""
        if i in self._flights:
            self._flights[i].received = received

    def _unite(self, i: int) -> United | Refusal | None:
        flight = self._flights.get(i) or Flight(self._blocks[i])
        if self._member and self._member.mail:
            refused = Refusal(flight.block, "pause", STOPPED_ELSEWHERE)
            parcels = flight.parcels or [refused] * self._share.world
            flight.received = exchange(flight.block, parcels, self._member.mail)
            if i >= self._refused:
                return None
        flight.united = unite(self._blocks[i], flight.received, self._union)
        # Its parcels stay: other workers may not have taken theirs yet.
        flight.received = None
        return flight.united

    def _unique(self, i: int) -> Unique | United | Refusal:
        """The working set, for which `plan` may have to wait."""
        flight = self._flights[i]
        if self._member:
            return flight.united
        if isinstance(flight.unique, Pending):
            flight.unique = flight.unique.get()
        return flight.unique

    def _plan(self, i: int) -> Plan | Refusal:
        window = range(i, min(i + self._look_ahead, self._last) + 1)
        planned: Plan | Refusal
        if self.pause or i >= self._stopped:
            planned = Refusal(self._blocks[i], "pause", self.pause or STOPPED_ELSEWHERE)
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
            source: object = None
            if self._member:
                flight.unique, flight.united, source = self._gpu.upload_part(
                    i, flight.examples, flight.unique, flight.united, self._read_ring[i % self._rings.read]
                )
            staged = self._gpu.upload(flight.plan, flight.staged, arriving_RW)
            flight.staged = replace(staged, source=(staged.source, source))
        return flight.staged

    def _train(self, i: int) -> Trained | None:
        weights_K = self._agree(i) if self._member and i < self._stopped else None
        if i >= self._refused:
            return None
        flight = self._flights[i]
        leaving_RW, outgoing_RW = (
            _slice(ring, i % self._rings.outgoing, self._room.outgoing_rows) for ring in (self._leaving, self._outgoing)
        )
        if i >= self._stopped:
            flight.trained = move(flight.plan, flight.staged, self.slab, leaving_RW, outgoing_RW, self.device)
            return flight.trained
        flight.trained = train(
            flight.plan, flight.examples, flight.unique, flight.staged, self.slab, leaving_RW, outgoing_RW,
            self.learner, self.device, flight.united, weights_K or (),
        )  # fmt: skip
        if self._gpu:
            self._gpu.trained(i)
        self._unasked.append(flight.trained)
        if self._member:
            # `upload` copies from the read buffer, which is another block's once this is through.
            flight.staged.ready.wait()
        return flight.trained

    def _agree(self, i: int) -> list[float] | None:
        """What the examples of each whole batch weigh, if all workers have planned the block; else none trains on it,
        and those who have planned it move its rows, and those of the blocks that they planned after it."""
        assert self._member
        block, refused = self._blocks[i], i >= self._refused
        weights_K = [0.0] * block.num_batches if refused else self._flights[i].examples.batch_weights()
        refusals, *weights_K = self._member.group.sums([float(refused), *weights_K])
        if refusals:
            self._stopped = i
            return None
        return weights_K

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


def _slice(ring_RW: U32, at: int, rows: int) -> U32:
    return ring_RW[at * rows : (at + 1) * rows]
