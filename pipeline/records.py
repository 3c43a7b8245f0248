"""Records that flow between the stages, in the order in which it comes to be.

Shape letters, everywhere in this project:
  N examples of a block     B examples of a batch      T labels           X numbers
  F categorical fields      S single-valued fields     M multi-hot fields
  V values (occurrences of keys)   U unique keys of a block   P unique keys of a batch
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
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

RESERVED = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Never a key: empty slot of a hash table, fill value and padding of the log."""

TILE = 1024
"""Examples of a tile: gradients of equal keys are summed within a tile first, then tile by tile."""


class Event(Protocol):
    """Something that a GPU was given to do, and may not have done yet."""

    def wait(self) -> None:
        """Return once it is done, with all that the same stream had been given before."""


class AlreadyDone:
    """An event that has happened: what is computed in RAM is done when the call returns."""

    def wait(self) -> None:
        pass


DONE = AlreadyDone()


@dataclass(frozen=True, slots=True)
class Block:
    """`num_batches` consecutive batches of one split: the unit that moves through the stages."""

    number: int
    split: str
    """"train", "validation" or "test"."""
    epoch: int
    first_batch: int
    """Number of the block's first batch within the split's epoch."""
    num_batches: int
    first_example: int
    """Position of the block's first example in the order of the split's epoch."""
    num_examples: int
    batch_size: int
    """Every batch has this many examples, but for the last of an epoch, which may have fewer, or a few more."""
    first_step: int
    """Optimizer steps taken before this block, over the whole run."""
    closes_split: bool
    """No further block of this split follows in this epoch."""

    @property
    def trains(self) -> bool:
        return self.split == "train"

    def batch_bounds(self, batch: int) -> tuple[int, int]:
        """First and end (exclusive) example of a batch, counted from the block's first."""
        begin = batch * self.batch_size
        return begin, self.num_examples if batch == self.num_batches - 1 else begin + self.batch_size


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of this worker among W. Each batch is cut into W parts, in order, that differ by one example at most."""

    number: int = 0
    world: int = 1

    def bounds(self, num_examples: int) -> tuple[int, int]:
        """First and end (exclusive) example of the worker's part of so many."""
        each, more = divmod(num_examples, self.world)
        begin = self.number * each + min(self.number, more)
        return begin, begin + each + (self.number < more)

    def part_of(self, block: Block) -> Block:
        """The block as this worker reads it: parts of batches, counted from the first of the first part."""
        sizes = [self._size(end - begin) for begin, end in map(block.batch_bounds, range(block.num_batches))]
        return replace(block, num_examples=sum(sizes), batch_size=self._size(block.batch_size))

    def _size(self, num_examples: int) -> int:
        begin, end = self.bounds(num_examples)
        return end - begin


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """Where the values of each categorical field stand in a batch; the same for all blocks of a run."""

    single_S: tuple[int, ...]
    """Field numbers of the single-valued fields, in the order of the workflow."""
    multi_M: tuple[int, ...]
    """Field numbers of the multi-hot fields, in the order of the workflow."""
    mean_M: tuple[bool, ...]
    """Whether a multi-hot field is pooled by mean (else by sum)."""

    @property
    def num_fields(self) -> int:
        return len(self.single_S) + len(self.multi_M)


@dataclass(frozen=True, slots=True)
class Examples:
    """A block as `read` left it in its buffer of the read ring.

    The values of a batch are contiguous in `keys_V`, from `batch_starts[b]` to `batch_starts[b + 1]`: first the
    single-valued fields, field by field, B values each, then the multi-hot fields, field by field.
    """

    block: Block
    labels_NT: F32
    weights_N: F32 | None
    numbers_NX: F32
    keys_V: U64
    """`dedup` overwrites it, batch by batch, with the batch's inverse and source (see `BatchIndex`)."""
    batch_starts: I64
    """[K + 1] where the values of each batch begin in `keys_V`."""
    bags: tuple[I32, ...]
    """Per batch [M, B + 1]: where each example's bag begins, counted from the batch's first value."""
    nbytes: int
    """Bytes of the read ring that the block takes."""
    groups_N: U64 | None = None
    """Which group each example belongs to, for the metrics; None if the workflow names none. On the host alone."""

    def batch_weights(self) -> list[float]:
        """Return what the examples of each batch weigh together: 1 each, where there is no weight."""
        bounds = map(self.block.batch_bounds, range(self.block.num_batches))
        if self.weights_N is None:
            return [float(end - begin) for begin, end in bounds]
        return [float(self.weights_N[begin:end].sum(dtype=np.float64)) for begin, end in bounds]


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """One batch's own view of the block's unique keys. `inverse_V` and `source_V` live in the read ring."""

    unique_P: I32
    """Positions in the block's `keys_U` of the keys of this batch, in order of first appearance."""
    starts_P: I32
    """[P + 1] where each unique key's occurrences begin in `source_V`."""
    inverse_V: I32
    """For each value, in the batch's order, the position of its key in `unique_P`."""
    source_V: I32
    """Occurrences grouped by unique key, each as example * F + field. Within a key: tiles of `TILE` examples in
    order, within a tile field by field, within a field example by example. The batch alone fixes this order."""
    parts_W: tuple[int, ...] = ()
    """Among several workers: unique keys of each worker, in whose order they come."""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The keys that one worker needs of those that another one owns, for one block."""

    keys_U: U64
    positions: tuple[I32, ...]
    """Per batch [P] positions in `keys_U`, in the order in which the worker holds the batch's unique keys."""
    occurrences: tuple[I32, ...]
    """Per batch [P] how often the worker's part of the batch holds each."""
    examples_with_key: tuple[I32, ...]
    """Per batch [P] how many examples of it hold each; empty where the optimizer does not ask, or they are the same."""

    @property
    def num_bytes(self) -> int:
        return self.keys_U.nbytes + sum(
            part.nbytes for parts in (self.positions, self.occurrences, self.examples_with_key) for part in parts
        )


@dataclass(frozen=True, slots=True)
class RowRequests:
    """The requests of all workers to an owner for one batch. R requests, rank by rank, each in its own order."""

    index: BatchIndex
    """The keys they ask for as those of a batch with one field whose values are the requests."""
    parts_W: tuple[int, ...]
    """Requests of each rank."""
    starts_P: I32
    """[P + 1] differences are the occurrences in the whole batch."""
    examples_with_key_P: I32
    """Examples of the whole batch; empty as in `KeyRequest`."""


@dataclass(frozen=True, slots=True)
class Unique:
    """The working set of a block: its unique keys, in order of first appearance."""

    block: Block
    keys_U: U64
    batches: tuple[BatchIndex, ...]
    """On a GPU they lie in its memory."""
    examples: Examples | None = None
    """The block's examples in the memory of the GPU; None where `train` takes those that `read` left."""


@dataclass(frozen=True, slots=True)
class OwnedKeys:
    """The working set of an owner: the keys of its shards that any worker needs for a block. As `Unique` to `plan`."""

    block: Block
    keys_U: U64
    row_requests: tuple[RowRequests, ...]
    """Per batch."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Rows that a plan moves, and where the working set was found. Counts of rows."""

    keys: int = 0
    device_hits: int = 0
    host_hits: int = 0
    disk_hits: int = 0
    new: int = 0
    device_to_host: int = 0
    device_to_disk: int = 0
    host_to_disk: int = 0
    unchanged: int = 0
    """Of the rows that went to disk, those that the log had already as they are: nothing was written."""
    padding: int = 0
    """Rows of the log that a block's last chunk leaves unused."""
    arrives: bool = True
    """False for evaluation, whose rows are read into staging and stay where they are."""


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """Rows that go to disk into one shard: the next rows of the host's victims, then the next of the device's."""

    num_host: int
    num_device: int
    at_N: I64
    """[num_host + num_device] positions of the log: chunk after chunk, each from its first row."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves of a block: which row comes from where, who leaves, where to; all that the later stages need to know of
    a block.

    Staging holds the arrivals in this order: new rows, rows from the host, rows from the disk. The outgoing buffer
    holds the victims: first those that go to the host, then those that go to the disk. The victims that go to disk, the
    host's and the device's, are both in the order of their shards.
    """

    block: Block
    rows_U: I32
    """Where `train` finds each key's row: a device slot, or -1 - r for row r of staging (evaluation only)."""
    arrival_keys_A: U64
    num_new: int
    arrival_host_slots: I32
    arrival_disk_at: I64
    arrival_slots: I32
    """[A] device slot of each arrival; empty for evaluation."""
    victim_slots_E: I32
    """Device slots whose row goes somewhere: one that lies on disk as it is just gives up its slot."""
    host_into: I32
    """Host slots of the first len(host_into) victims of the device; the rest of them go to disk."""
    host_victim_slots: I32
    """Those whose row is written to disk."""
    disk_writes: tuple[DiskWrite, ...]
    """One for each shard that receives rows, in their order."""
    moves: Moves

    @property
    def num_to_disk(self) -> int:
        return len(self.host_victim_slots) + len(self.victim_slots_E) - len(self.host_into)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a block cannot be planned (or read). Nothing was changed; the blocks before it finish."""

    block: Block
    what: str
    """"pause": so asked. "commit": it goes on after one. "window": a smaller look-ahead or block may help. "disk": it
    may go on once older commits are given up. "map": the run stops."""
    message: str
    """What is needed, what there is, which setting to change."""
    needed: int = 0
    """What the message says is needed."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A block's arrivals, filled in; `rows_AW` is a view of a staging buffer."""

    block: Block
    rows_AW: U32
    plan: Plan | None = None
    """On a GPU, the plan with the indices that `train` uses in the GPU's memory."""
    ready: Event = DONE
    """When all of it is there."""
    source: object = None
    """Host memory that it is copied from."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A block that was trained or scored, or that a GPU was told to; `outgoing_EW` is a view of an outgoing buffer."""

    block: Block
    outgoing_EW: U32
    found: Callable[[], BlockResult] | None = None
    """What came of it; to be called once the block's work is done."""
    swapped: Event = DONE
    """When `outgoing_EW` is filled, and what arrived is not read any more: after the swap, or after the last score."""


@dataclass(frozen=True, slots=True)
class Written:
    """A block whose rows are all at rest."""

    block: Block


@dataclass(frozen=True, slots=True)
class Span:
    """When one call of one stage ran."""

    stage: str
    number: int
    """Number of the block."""
    start: float
    stop: float
    """Seconds on `time.perf_counter`'s clock."""
    cpu_seconds: float
    """CPU time of the calling thread (of the whole process under the serial executor)."""
    ready: int = 0
    """For `train`: blocks that were staged and waiting when it began, its own not counted."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage's call, for the driver: small enough to travel anywhere. The arrays stay where they are."""

    stage: str
    number: int
    span: Span | None = None
    """None where the call did nothing, since `plan` had refused this block or one before it."""
    refusal: Refusal | None = None
    moves: Moves | None = None
    trained: BlockResult | None = None


@dataclass(frozen=True, slots=True)
class SplitSums:
    """One worker's metric sums of a finished split; its sorted scores are fetched separately."""

    examples: int = 0
    weight: float = 0.0
    sums_3T: tuple[tuple[float, ...], ...] = ()
    """Cross-entropy, predicted probability and label, each times the weight."""
    clipped: float = 0.0
    clippable: float = 0.0
    """Rows whose gradient CowClip clipped in this epoch, and all that it looked at."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of a block once `train` is through with it."""

    block: Block
    loss: float
    """Mean loss over the block's examples, weighted."""
    metrics: dict[str, float]
    """Filled by the block that closes a split of which there are metrics."""
    weight: float = 0.0
    """Of the examples that the loss is the mean of."""
    closed: SplitSums | None = None
    """In place of metrics, where a worker has a part of the examples alone."""
