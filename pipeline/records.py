"""Records passed between the stages, in the order in which the stages create them.

Shape letters of these records and of the stages (a module that uses others defines them):
  N examples of a block     B examples of a batch      T labels           X numbers
  F categorical fields      S single-valued fields     M multi-hot fields
  V values (occurrences of keys)   Q values of sequences, which follow those of the fields   L item lists of sequences
  U unique keys of a block   P unique keys of a batch
  A rows that arrive        E rows that leave (are evicted)
  D embedding width         W row width in 32-bit words       K batches of a block
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

RESERVED = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A value that is never a key. Marks empty slots of hash tables; fills and pads the log."""

TILE = 1024
"""Number of examples in a tile. Gradients of equal keys are summed first within each tile, then tile by tile."""


class Event(Protocol):
    """A point in a GPU's queued work that the GPU may not have reached yet."""

    def wait(self) -> None:
        """Block until the GPU has finished all work submitted to the stream before this event."""


class AlreadyDone:
    """An event that has already happened, since work in RAM is done when the call returns."""

    def wait(self) -> None:
        pass


DONE = AlreadyDone()


@dataclass(frozen=True, slots=True)
class Block:
    """`num_batches` consecutive batches of one split: the unit that moves through the stages."""

    number: int
    split: str
    """"train", "validation", "test", or "span" (a span of the training data, scored before it is trained on)."""
    epoch: int
    """Number of the epoch, or of the pass over the span."""
    first_batch: int
    """Number of the block's first batch within the split's epoch."""
    num_batches: int
    first_example: int
    """Position of the block's first example in the order of the split's epoch."""
    num_examples: int
    batch_size: int
    """Number of examples of every batch except the last one of an epoch, which may have fewer or slightly more."""
    first_step: int
    """Number of optimizer steps before this block, over the whole run."""
    closes_split: bool
    """True for the split's last block in this epoch."""
    agenda_batch: int = 0
    """Number of batches before the block's first one, over the whole run, including evaluations."""
    span: int | None = None
    """Number of the block's span or, when another split is evaluated, of the latest span; None if the training data has
    no spans."""

    @property
    def trains(self) -> bool:
        return self.split == "train"

    @property
    def round(self) -> int:
        """Number of the block's epoch or, if there are spans, of its span; counts from 1."""
        return 1 + (self.epoch if self.span is None else self.span)

    def batch_bounds(self, batch: int) -> tuple[int, int]:
        """Range [begin, end) of a batch's examples, counted from the block's first example."""
        begin = batch * self.batch_size
        return begin, self.num_examples if batch == self.num_batches - 1 else begin + self.batch_size


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank of this worker among W workers.

    Each batch is divided into W contiguous parts, in the order of ranks. Their sizes differ by at most one example.
    """

    number: int = 0
    world: int = 1

    def bounds(self, num_examples: int) -> tuple[int, int]:
        """Range [begin, end) of this worker's part of `num_examples` examples."""
        each, more = divmod(num_examples, self.world)
        begin = self.number * each + min(self.number, more)
        return begin, begin + each + (self.number < more)

    def part_of(self, block: Block) -> Block:
        """The block as this worker sees it: the worker's part of each batch. Examples are counted from the start of the
        first part."""
        sizes = [self.size_of(end - begin) for begin, end in map(block.batch_bounds, range(block.num_batches))]
        return replace(block, num_examples=sum(sizes), batch_size=self.size_of(block.batch_size))

    def size_of(self, num_examples: int) -> int:
        """Size of this worker's part of `num_examples` examples."""
        begin, end = self.bounds(num_examples)
        return end - begin


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """Position of each categorical field's values within a batch; the same for all blocks of a run."""

    single_S: tuple[int, ...]
    """Field numbers of the single-valued fields, in workflow order."""
    multi_M: tuple[int, ...]
    """Field numbers of the multi-hot fields, in workflow order."""
    mean_M: tuple[bool, ...]
    """True for each multi-hot field that is mean-pooled; the others are sum-pooled."""
    candidates_L: tuple[int, ...] = ()
    """Field number of each item list's candidate: sequence by sequence, in workflow order."""

    @property
    def num_fields(self) -> int:
        return len(self.single_S) + len(self.multi_M)

    @property
    def num_lists(self) -> int:
        return len(self.candidates_L)


@dataclass(frozen=True, slots=True)
class Examples:
    """A block as `read` writes it to a buffer of the read ring.

    The values of batch b are `keys_V[batch_starts[b] : batch_starts[b + 1]]`: first the single-valued fields, field by
    field, B values each, then the multi-hot fields, field by field, then the item lists of sequences, list by list.
    """

    block: Block
    labels_NT: F32
    weights_N: F32 | None
    numbers_NX: F32
    keys_V: U64
    """Keys of all values. `dedup` overwrites each batch's keys with its inverse and source (see `BatchIndex`)."""
    batch_starts: I64
    """[K + 1] starts of the batches' values in `keys_V`."""
    bags: tuple[I32, ...]
    """Per batch, [M + L, B + 1] starts of the examples' bags and item lists, counted from the batch's first value."""
    nbytes: int
    """Bytes that the block takes in the read ring."""
    groups_N: U64 | None = None
    """Group of each example, for metrics within groups; None if the workflow names no group. Always on the host."""
    lists: tuple[tuple[int, ...], ...] = ()
    """Per batch, the starts of the item lists' values and their end, as in `bags`: L + 1 numbers. On the host even if
    `bags` are not; empty without sequences."""
    list_numbers: tuple[tuple[F32, ...], ...] = ()
    """Per batch, the values of each list of numbers. Each has the same number of values as the item lists of its
    sequence."""
    num_cut: int = 0
    """Number of sequences in the block that were longer than their `max_length`."""

    def batch_weights(self, by_label: bool = False) -> list[float]:
        """Total example weight of each batch; without a weight column, each example has weight 1. `by_label`: for each
        batch, the weight of the examples that have the first label, then the second, and so on."""
        bounds = map(self.block.batch_bounds, range(self.block.num_batches))
        if by_label:
            weights_N = np.ones(len(self.labels_NT)) if self.weights_N is None else self.weights_N.astype(np.float64)
            weights_NT = ~np.isnan(self.labels_NT) * weights_N[:, None]
            return [total for begin, end in bounds for total in weights_NT[begin:end].sum(axis=0).tolist()]
        if self.weights_N is None:
            return [float(end - begin) for begin, end in bounds]
        return [float(self.weights_N[begin:end].sum(dtype=np.float64)) for begin, end in bounds]


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """Index of one batch into the block's unique keys. `inverse_V` and `source_V` are in the read ring."""

    unique_P: I32
    """Positions of this batch's unique keys in the block's `keys_U`, in order of first appearance."""
    starts_P: I32
    """[P + 1] starts of the unique keys' occurrences in `source_V`."""
    inverse_V: I32
    """Position of each value's key in `unique_P`, in the batch's order."""
    source_V: I32
    """Occurrences grouped by unique key. Within a key, those of fields come first, encoded as example * F + field and
    ordered by tile of `TILE` examples, then by field, then by example. Those of sequences follow in the order of the
    values: value q of the batch's item lists is B * F + q. The order depends only on the batch."""
    parts_W: tuple[int, ...] = ()
    """Number of unique keys of each owner, with several workers; the keys are then in the order of their owners."""
    lists_LB: I32 | None = None
    """[L, B + 1] starts of the item lists of sequences, as in `Examples.bags`; None without sequences."""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The keys that one worker needs from one owner for a block."""

    keys_U: U64
    positions: tuple[I32, ...]
    """Per batch, [P] positions in `keys_U`, in the order of the requesting worker's unique keys of the batch."""
    occurrences: tuple[I32, ...]
    """Per batch, [P] number of occurrences of each key in the worker's part of the batch."""
    examples_with_key: tuple[I32, ...]
    """Per batch, [P] number of examples that contain each key; empty if the optimizer does not need it, or if it equals
    `occurrences` because no example can contain a key twice."""


@dataclass(frozen=True, slots=True)
class RowRequests:
    """Requests of all workers to one owner for one batch: R requests, ordered by rank, and within a rank as in its
    `KeyRequest`."""

    index: BatchIndex
    """Index of the requested keys, built as for a batch with one field whose values are the requests."""
    parts_W: tuple[int, ...]
    """Number of requests of each rank."""
    starts_P: I32
    """[P + 1] cumulative counts; their differences are the numbers of each key's occurrences in the whole batch."""
    examples_with_key_P: I32
    """Number of examples of the whole batch that contain each key; empty as in `KeyRequest`."""


@dataclass(frozen=True, slots=True)
class Unique:
    """The working set of a block: its unique keys, in order of first appearance."""

    block: Block
    keys_U: U64
    batches: tuple[BatchIndex, ...]
    """Index of each batch; in GPU memory if `dedup` ran on the GPU."""
    examples: Examples | None = None
    """The block's examples in GPU memory; None if `train` uses those returned by `read`."""


@dataclass(frozen=True, slots=True)
class OwnedKeys:
    """The working set of an owner: the keys of its shards that any worker needs for a block. `plan` treats it like
    `Unique`."""

    block: Block
    keys_U: U64
    row_requests: tuple[RowRequests, ...]
    """One per batch."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Row counts of a plan: where the working set was found, and how many rows move between tiers."""

    keys: int = 0
    device_hits: int = 0
    host_hits: int = 0
    disk_hits: int = 0
    new: int = 0
    device_to_host: int = 0
    device_to_disk: int = 0
    host_to_disk: int = 0
    unchanged: int = 0
    """Rows evicted to disk without a write, since the log already contains them unchanged."""
    padding: int = 0
    """Unused rows at the end of the block's last chunks in the log."""
    arrives: bool = True
    """False for evaluation, whose rows are read into staging but stay in their tiers."""


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """Rows written to one shard on disk: the next `num_host` of the host's victims, then the next `num_device` of the
    device's victims."""

    num_host: int
    num_device: int
    at_N: I64
    """[num_host + num_device] positions in the log: chunk after chunk, each from its first row."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All row moves of a block: the source of each arrival, the victims and their destinations.

    The staging buffer holds the arrivals in this order: new rows, rows from the host, rows from the disk. The outgoing
    buffer holds the device's victims: first those that go to the host, then those that go to the disk. Victims that go
    to disk are ordered by shard, separately for host and device.
    """

    block: Block
    rows_U: I32
    """Location of each key's row for `train`: a device slot, or -1 - r for row r of staging (evaluation only)."""
    arrival_keys_A: U64
    num_new: int
    arrival_host_slots: I32
    arrival_disk_at: I64
    arrival_slots: I32
    """[A] device slot of each arrival; empty for evaluation."""
    victim_slots_E: I32
    """Device slots of the victims that must be copied. Victims whose unchanged row is in the log are omitted."""
    host_into: I32
    """Host slots that receive the device's first len(host_into) victims; the other victims go to disk."""
    host_victim_slots: I32
    """Host slots whose rows are written to disk."""
    disk_writes: tuple[DiskWrite, ...]
    """One per shard that receives rows, in the order of shards."""
    moves: Moves

    @property
    def num_to_disk(self) -> int:
        return len(self.host_victim_slots) + len(self.victim_slots_E) - len(self.host_into)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A block that `plan` (or `read`) refuses, and the reason. Nothing was changed; earlier blocks are completed."""

    block: Block
    what: str
    """Kind of the reason. "pause": the driver asked for it. "commit": a commit must come first. "window": a smaller
    look-ahead or block may fit. "disk": the run may continue after older commits are deleted. "map": the run stops."""
    message: str
    """Text for the user: what is needed and what is available."""
    needed: int = 0
    """The amount needed: chunks, bytes, or rows (the whole working set may have to move at once)."""
    cap: str = ""
    """Field of the run's `Sizes` that is too small, such as "staging_rows"; for a ring, its buffers are too small.
    Empty if none is."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of a block's arrivals; `rows_AW` is a view of a staging buffer."""

    block: Block
    rows_AW: U32
    plan: Plan | None = None
    """The plan with the arrays that `train` uses copied to the GPU's memory; None without a GPU."""
    ready: Event = DONE
    """Happens when rows and plan have been copied to the GPU."""
    source: object = None
    """Host memory that is the source of the copies; the reference keeps it allocated until they are done."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A block that was trained or scored, or whose work was submitted to a GPU.

    `outgoing_EW` is a view of an outgoing buffer.
    """

    block: Block
    outgoing_EW: U32
    found: Callable[[], BlockResult] | None = None
    """Returns the block's result; may be called only after the block's work is done. None if the block was not
    trained."""
    swapped: Event = DONE
    """Happens when `outgoing_EW` is filled and the arrivals have been read: after the swap or, for evaluation, after
    the last score."""


@dataclass(frozen=True, slots=True)
class Written:
    """A block whose rows have all reached the tiers that its plan assigned them."""

    block: Block


@dataclass(frozen=True, slots=True)
class StageCall:
    """Times of one call of a stage."""

    stage: str
    number: int
    """Number of the block."""
    start: float
    stop: float
    """Seconds on `time.perf_counter`'s clock."""
    cpu_seconds: float
    """CPU time of the calling thread, or of the whole process under the serial executor."""
    ready: int = 0
    """Number of blocks that were staged and waiting when `train` started, excluding its own block."""
    parts: tuple[tuple[str, float], ...] = ()
    """(name, seconds) of separately reported parts of the call: "disk", "host copy", "other workers", "compile"."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of a stage's call for the driver: a few numbers. Arrays stay in the worker's process."""

    stage: str
    number: int
    call: StageCall | None = None
    """None if the call did nothing because this block or an earlier one had been refused, or if there was no call, as
    in results that are fetched when the pipeline drains."""
    refusal: Refusal | None = None
    moves: Moves | None = None
    trained: BlockResult | None = None
    """Block result that has become available; on a GPU, that of an earlier block (`trained.block`)."""


MetricSums = tuple[int, I64, NDArray[np.float64], NDArray[np.float64]]
"""Number of examples; number [T] and weight [T] of those that have each label; sums [S, T] (see
`pipeline.metrics.evaluation`)."""


@dataclass(frozen=True, slots=True)
class SplitSums:
    """One worker's metric sums of a split or part of a split. Scores are fetched separately."""

    sums: MetricSums | None = None
    """None if nothing was evaluated."""
    clipped: float = 0.0
    clippable: float = 0.0
    """Number of row gradients that CowClip clipped, and number that it checked, in this epoch."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """Result of a block after `train`."""

    block: Block
    loss: float
    """Weighted mean loss over the block's examples."""
    metrics: dict[str, float]
    """Metrics of the split; empty except in the split's last block."""
    weight: float = 0.0
    """Total weight of the examples of `loss`."""
    closed: SplitSums | None = None
    """Metric sums instead of `metrics` if this worker has only a part of the examples."""
    scores_NT: F32 | None = None
    """[N, T] logits of the block's examples; only when scoring."""
