"""Cost of a workflow's own work on one worker, measured in a rehearsal: a few batches pass through all stages, in a
temporary folder."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from pipeline.cluster.threads import ThreadExecutor
from pipeline.data.agenda import START, Agenda, Position
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.machine.memory import resident_bytes
from pipeline.planner.machine import Machine
from pipeline.planner.timing import Cost, fastest
from pipeline.preflight.memory_table import table
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Moves, Rank, Refusal, StageCall, StageResult
from pipeline.schedule import BlockSchedule, Executor, SerialExecutor
from pipeline.spans.passes import span_passes
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.wide_rows import write_first_rows
from pipeline.worker.stage_runner import StageRunner
from pipeline.worker.tiers import Tiers, WorkerConfig

WARM_UP, FEWEST, MOST = 2, 3, 16
"""Number of warm-up batches, and bounds on the number of measured batches, which are run first serially and then
overlapped."""
MEASURED_SECONDS = 1.2
"""Time that each of the two measurements should take."""
FIRST_ROWS = 1 << 13
WINDOWS, EXAMPLES = 3, 4096
"""Number of windows to load, and number of examples whose values are counted."""


@dataclass(frozen=True, slots=True)
class Work:
    """Costs of a workflow on one worker, for the worker's part of each batch."""

    values_of_example: float
    """Number of categorical values per example."""
    example_bytes: float
    """Bytes per example in the read ring."""
    keys_of_batch: float
    """Number of unique keys of the worker's part of a full batch."""
    read_example: Cost
    dedup_value: Cost
    first_row: Cost
    """Cost of creating the row of a new key."""
    train_batch: Cost
    """Cost of a step without the swap: row lookup, forward and backward pass, both updates."""
    score_batch: Cost
    compile_seconds: float
    """Time that the first batch waits for the dense part to be compiled."""
    slowdown: float
    """Seconds added to training per CPU second of the other stages: 0 if these have separate cores, 1 if they take all
    their CPU time from training."""
    process_bytes: int
    """RAM of the worker's process in bytes, excluding rows, read ring, shuffle window and key map."""


def measure_work(
    setup: Setup, source: Source, device: Device, folder: Path, machine: Machine, at: Position = START
) -> Work:
    """Measure with the workflow's own model and the first examples after a position, in a temporary folder in `folder`.
    Raises ValueError if no training examples are left, and ValueError, OSError, MemoryError or PipelineError wherever
    the run itself would."""
    workflow = setup.workflow
    agenda = Agenda(
        source.num_examples, Rank(0, setup.world).size_of(workflow.schedule.batch_size), 1,
        passes=span_passes(workflow, source.calendar),
    )  # fmt: skip
    coming = Coming(agenda, at)
    read = read_cost(source, coming)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".measure-") as scratch:
        rehearsal = Rehearsal(setup, source, device, Path(scratch), machine, coming)
        try:
            return rehearsal.work(read)
        finally:
            rehearsal.close()


@dataclass(frozen=True, slots=True)
class Coming:
    """Batches of an agenda, starting at a position."""

    agenda: Agenda
    at: Position

    def __iter__(self) -> Iterator[Block]:
        return self.agenda.blocks(1, begin) if (begin := self.agenda.block_at(self.at, 1)) else iter(())

    def first(self, num: int, split: str) -> list[Block]:
        """The first batches of a split. Raises ValueError if there are none."""
        if not (found := [*islice((block for block in self if block.split == split), num)]):
            raise ValueError(f"no batch of {split} is left")
        return found


class Rehearsal:
    """Worker with the run's own tiers that trains and scores blocks of one batch."""

    def __init__(
        self, setup: Setup, source: Source, device: Device, scratch: Path, machine: Machine, coming: Coming
    ) -> None:
        self._setup, self._machine, self._coming, self._source = setup, machine, coming, source
        agenda = coming.agenda
        schedule = {"batch_size": Rank(0, setup.world).size_of(setup.workflow.schedule.batch_size)}
        # Take no commits, regardless of the number of rows written to disk, and read no keys ahead.
        workflow = setup.workflow.model_copy(update={
            "schedule": setup.workflow.schedule.model_copy(update=schedule),
            "storage": setup.workflow.storage.model_copy(update={
                "log_growth": 1e12, "device_policy": "clock", "host_policy": "clock",
            }),
        })  # fmt: skip
        speed = DiskSpeed(machine.scattered_read_seconds, machine.disk_read_bytes_per_second)
        config = WorkerConfig(
            setup.fit.sizes, setup.row, agenda.steps_of_epoch, agenda.largest_batch, scratch, speed, (), None
        )
        self._tiers = Tiers(workflow, config, source, device, Files())
        self._runner = StageRunner(workflow, source, self._tiers)
        self._look_ahead = setup.fit.look_ahead
        self._num_blocks = 0
        self._refusal: Refusal | None = None

    def close(self) -> None:
        self._runner.close()
        self._tiers.close()

    def work(self, read: Cost) -> Work:
        """Measure everything except `read`, whose cost is given. Raises ValueError if `plan` refuses the first
        batch."""
        values, example_bytes = values_of_example(self._source, self._coming)
        calls, moves = self._serially(WARM_UP, "train")
        if self._refusal and not moves:
            raise ValueError(self._refusal.message)
        compiling = sum(seconds for call in calls for name, seconds in call.parts if name == "compile")
        num = min(MOST, max(FEWEST, int(MEASURED_SECONDS / max(1e-6, _last(calls, "train").seconds))))
        measured = self._serially(num, "train")
        # If a later batch was refused, use the warm-up batches.
        calls, moves = measured if measured[1] else (calls, moves)
        train, dedup = _median(calls, "train"), _median(calls, "dedup")
        evaluated = next((block.split for block in self._coming if not block.trains), None)
        scored = self._serially(WARM_UP, evaluated)[0] if evaluated else []
        block = self._coming.first(1, "train")[0]
        return Work(
            values_of_example=values,
            example_bytes=example_bytes,
            keys_of_batch=statistics.mean(m.keys for m in moves),
            read_example=read,
            dedup_value=dedup * (1 / max(1.0, values * block.num_examples)),
            first_row=self._first_row(),
            train_batch=train + self._swap(moves) * -1.0,
            score_batch=_last(scored, "train") if scored else train,
            compile_seconds=compiling,
            slowdown=self._slowdown(num, train, calls),
            process_bytes=self._process_bytes(),
        )

    def _slowdown(self, num: int, train: Cost, calls: Sequence[StageCall]) -> float:
        """See `Work.slowdown`. `train`, `calls`: a step and all stage calls, run serially."""
        others = sum(s.cpu_seconds for s in calls if s.stage not in ("train", "gpu train"))
        seconds = self._overlapped(num)
        longer = seconds - train.seconds if seconds else others
        return min(1.0, max(0.0, longer / max(1e-9, others / max(1, len(_of(calls, "train"))))))

    def _blocks(self, num: int, split: str) -> list[Block]:
        """Next batches of a split, numbered consecutively across calls, starting over at the end. The split's last
        batch, which may be too small for batch norm, is omitted if there are others."""
        of_split = self._coming.first(1 + WARM_UP + 2 * MOST, split)
        of_split = [b for b in of_split if not b.closes_split] or of_split
        first, self._num_blocks = self._num_blocks, self._num_blocks + num
        return [
            replace(of_split[n % len(of_split)], number=n, first_step=n, closes_split=False)
            for n in range(first, first + num)
        ]

    def _serially(self, num: int, split: str) -> tuple[list[StageCall], list[Moves]]:
        """Run the stages serially. Returns their calls, with the CPU time of all threads, and the moves."""
        return self._run(num, split, SerialExecutor(partial(self._runner.run, cpu_clock=time.process_time)))

    def _overlapped(self, num: int) -> float:
        """Run blocks overlapped as in a run. Returns seconds per block, from the start of the first training to the end
        of the last; 0 if none was trained."""
        executor = ThreadExecutor(self._runner.run)
        try:
            trained = _of(self._run(num, "train", executor)[0], "train")
        finally:
            executor.close()
        return (trained[-1].stop - trained[0].start) / len(trained) if trained else 0.0

    def _run(self, num: int, split: str, executor: Executor) -> tuple[list[StageCall], list[Moves]]:
        blocks, results = self._blocks(num, split), list[StageResult]()
        self._runner.start(blocks, self._look_ahead)
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        names = self._runner.names
        self._refusal = BlockSchedule(numbers, self._look_ahead, names, executor, results.append).run()
        results += self._runner.drain()
        return [done.call for done in results if done.call], [done.moves for done in results if done.moves]

    def _swap(self, moves: Sequence[Moves]) -> Cost:
        """Cost of a block's swap, to be subtracted here: the prediction computes it from the replayed plans."""
        rows = statistics.mean(m.keys - m.device_hits + m.device_to_host + m.device_to_disk for m in moves)
        seconds = rows * self._setup.row.num_bytes / self._machine.copy_bytes_per_second
        return Cost(seconds / self._setup.workflow.schedule.threads, seconds)

    def _first_row(self) -> Cost:
        setup, rng = self._setup, np.random.default_rng(0)
        keys_U = rng.integers(0, 1 << 63, FIRST_ROWS, dtype=np.uint64)
        rows_UW = np.empty((FIRST_ROWS, setup.row.num_words), np.uint32)
        seconds = fastest(
            lambda: write_first_rows(setup.row, setup.workflow.seed, setup.workflow.model.init_std, keys_U, rows_UW)
        )
        return Cost(seconds, seconds) * (1 / FIRST_ROWS)

    def _process_bytes(self) -> int:
        """Resident bytes of this process, excluding the touched parts of the listed buffers."""
        places, sizes, row = self._tiers.places, self._setup.fit.sizes, self._setup.row.num_bytes
        rows = sum(len(slots.keys_S) - slots.num_free for slots in (places.device, places.host))
        marks = next(size for name, size, _ in table(sizes, self._look_ahead) if name == "slot marks")
        touched = rows * row * 2 + marks + places.map.num_bytes + sizes.window_bytes
        return max(self._machine.process_bytes, resident_bytes() - touched)


def _of(calls: Sequence[StageCall], stage: str) -> list[StageCall]:
    """Calls of a stage. For training on a GPU, the calls that report the GPU's own time."""
    on_gpu = [call for call in calls if call.stage == f"gpu {stage}"]
    return on_gpu or [call for call in calls if call.stage == stage]


def _cost(call: StageCall) -> Cost:
    return Cost(call.stop - call.start, call.cpu_seconds)


def _last(calls: Sequence[StageCall], stage: str) -> Cost:
    return _cost(_of(calls, stage)[-1])


def _median(calls: Sequence[StageCall], stage: str) -> Cost:
    costs = [_cost(call) for call in _of(calls, stage)]
    seconds, cpu = (statistics.median(getattr(c, name) for c in costs) for name in ("seconds", "cpu_seconds"))
    return Cost(seconds, cpu)


def values_of_example(source: Source, coming: Coming) -> tuple[float, float]:
    """Return the average number of categorical values per example, over the first examples, and the average bytes per
    example in the read ring."""
    first = coming.first(1, "train")[0]
    at = coming.agenda.position(first)
    block = coming.agenda.block_at(at, max(1, EXAMPLES // first.batch_size)) or first
    num_bytes = source.block_bytes(block.num_examples, block.num_batches)
    examples = source.read(block, ReadBuffer(2 * num_bytes + (1 << 16)))
    return len(examples.keys_V) / block.num_examples, num_bytes / block.num_examples


def read_cost(source: Source, coming: Coming) -> Cost:
    """Cost of reading an example, including its share of the windows and row groups."""
    # Use another epoch, which has no window in memory.
    first = replace(coming.first(1, "train")[0], epoch=1)
    window, batch = source.loads(first)[0], first.num_examples
    buffer = ReadBuffer(2 * source.block_bytes(batch) + (1 << 16))
    starts = [number * window // batch for number in range(WINDOWS)]
    lines, seconds, cpu = [], [], []
    blocks = coming.first(starts[-1] + 2, "train")
    for begin in (at + n for at in starts for n in (0, 1)):
        if begin >= len(blocks) or blocks[begin].span != first.span or blocks[begin].num_examples > batch:
            continue
        block = replace(blocks[begin], epoch=1)
        loads, start = source.loads(block), (time.perf_counter(), time.process_time())
        source.read(block, buffer)
        seconds.append(time.perf_counter() - start[0])
        cpu.append(time.process_time() - start[1])
        lines.append([*loads, block.num_examples])
    # Least squares with three unknowns: decoding and hashing a row, shuffling it into a window, writing it to a batch.
    each = [float(np.linalg.lstsq(np.array(lines, float), np.array(of), rcond=None)[0].sum()) for of in (seconds, cpu)]
    return Cost(*(max(value, 1e-9) for value in each))
