"""Read the first window before the run, to find the look-ahead and block size that the caps allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.data.buffer import BufferTooSmall, ReadBuffer
from pipeline.data.source import Source
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.preflight.checked import Checked
from pipeline.preflight.sizes import SLACK, DoesNotFit, FirstWindow, Fit, Sizes, fit, read_ring_bytes
from pipeline.records import U64, Block, Rank, Refusal
from pipeline.settings.caps import CapSizes, caps_of
from pipeline.stages.dedup import KeyOwners, Workspace, dedup
from pipeline.stages.dedup_on_gpu import BYTES_PER_KEY, limit_of


def rehearse(c: Checked) -> Fit:
    """Find the largest look-ahead, then the largest block size, that fit every worker. `c.say` is called with the
    reason if they are smaller than the workflow's, or than those chosen with the caps. Raises DoesNotFit, with the
    numbers, if not even one batch fits."""
    schedule, storage, source, world = c.workflow.schedule, caps_of(c.storage), c.source, c.world
    most_ahead, most_batches = c.pace or (schedule.look_ahead, schedule.block_batches)

    def block_bytes(batches: int) -> int:
        num_examples = min(batches * schedule.batch_size, max(source.num_examples.values()))
        return source.block_bytes(-(-num_examples // world), batches)

    # Dense parts: one per kept commit, one of the commit being written, one of "best", and model.safetensors.
    num_kept = c.workflow.commit.keep + c.workflow.storage.keep_spans
    needs = Needs(
        reductions(most_ahead, most_batches), c.row.num_bytes, source.window_bytes(schedule.batch_size),
        (num_kept + 3) * c.dense.num_bytes, c.device.on_gpu,
        -(-c.workflow.workers.num_shards(world) // world),
    )  # fmt: skip
    why: Exception | None = None
    for look_ahead, block_batches in needs.steps:
        buffer_bytes = read_ring_bytes(storage, needs.window_bytes) // (2 * look_ahead + 1)
        try:
            if block_batches not in needs.windows:
                num_blocks = -(-(most_ahead + 1) * most_batches // block_batches)
                needs.block_bytes[block_batches] = block_bytes(block_batches)
                blocks = c.first_blocks(num_blocks, block_batches)
                needs.windows[block_batches] = first_window(source, blocks, buffer_bytes, world)
            sizes = needs.sizes(storage, look_ahead, block_batches)
        except BufferTooSmall as too_small:
            last: Exception = needs.read_too_small(storage, look_ahead, block_batches, too_small.needed_bytes)
        except DoesNotFit as too_small:
            last = too_small
        else:
            if why:
                c.say(f"look-ahead {look_ahead}, blocks of {block_batches} batches: {why}")
            return Fit(sizes, look_ahead, block_batches, needs.windows[block_batches])
        why = why or last
    raise DoesNotFit(f"one batch alone does not fit: {last}")


@dataclass(frozen=True, slots=True)
class Needs:
    """Everything, except the caps, that the sizes of a run depend on."""

    steps: Sequence[tuple[int, int]]
    """Pairs (look-ahead, batches per block), largest first."""
    row_bytes: int
    window_bytes: int
    commit_bytes: int
    """Bytes on the disk in addition to the log."""
    on_gpu: bool
    num_owned: int
    """Number of shards that share the caps."""
    windows: dict[int, FirstWindow] = field(default_factory=dict)
    """First windows read so far, by batches per block."""
    block_bytes: dict[int, int] = field(default_factory=dict)
    """Expected bytes of a block in the read ring, by batches per block."""

    def sizes(self, storage: CapSizes, look_ahead: int, block_batches: int) -> Sizes:
        """Divide the caps for this pace. Raises DoesNotFit if a cap is too small."""
        window = self.windows[block_batches]
        buffer_bytes = read_ring_bytes(storage, self.window_bytes) // (2 * look_ahead + 1)
        if self.on_gpu and (keys := max(window.keys_of_blocks)) > limit_of(buffer_bytes):
            needed = format_size_up(self._read_cap(look_ahead, BYTES_PER_KEY * keys))
            raise DoesNotFit(
                f"blocks of {block_batches} batches have {keys:,} unique keys, and dedup's table on the GPU has room "
                f'for {limit_of(buffer_bytes):,}; raise storage.read to "{needed}"'
            )
        if (needed_bytes := self.block_bytes[block_batches]) > buffer_bytes:
            raise self.read_too_small(storage, look_ahead, block_batches, needed_bytes)
        # The last attempt, a single batch, gets no slack.
        slack = SLACK if look_ahead or block_batches > 1 else 1.0
        return fit(
            storage, self.row_bytes, self.window_bytes, look_ahead, window, self.commit_bytes, slack, self.on_gpu,
            self.num_owned,
        )  # fmt: skip

    def read_too_small(self, storage: CapSizes, look_ahead: int, block_batches: int, needed_bytes: int) -> DoesNotFit:
        """Make the error for a read ring buffer that would need `needed_bytes`."""
        num_buffers = 2 * look_ahead + 1
        there_is = read_ring_bytes(storage, self.window_bytes) // num_buffers
        return DoesNotFit(
            f"storage.read is {format_size_down(storage.read)}; a block of {block_batches} batches needs "
            f"{format_size_up(needed_bytes)}, and each of {num_buffers} buffers has {format_size_down(there_is)}; "
            f'raise storage.read to "{format_size_up(self._read_cap(look_ahead, needed_bytes))}" or lower '
            "schedule.batch_size or schedule.block_batches"
        )

    def _read_cap(self, look_ahead: int, buffer_bytes: int) -> int:
        return self.window_bytes + (2 * look_ahead + 1) * buffer_bytes


def reductions(look_ahead: int, block_batches: int) -> list[tuple[int, int]]:
    """Pairs (look-ahead, batches per block) to try in turn: first smaller look-aheads, then smaller blocks."""
    steps = [(ahead, block_batches) for ahead in range(look_ahead, -1, -1)]
    while block_batches > 1:
        block_batches //= 2
        steps.append((0, block_batches))
    return steps


def first_window(source: Source, blocks: Iterable[Block], buffer_bytes: int, world: int = 1) -> FirstWindow:
    """Read and deduplicate the first blocks of a session. With several workers, the numbers of keys are those of the
    owner with the most keys."""
    owners = KeyOwners(range(world), world)
    buffer, work = ReadBuffer(buffer_bytes), Workspace(source.layout)
    seen: list[U64] = [np.empty(0, np.uint64)] * world
    counts: list[int] = []
    unions: list[int] = []
    for block in blocks:
        keys_U: U64 = np.empty(0, np.uint64)
        for rank in range(world):
            unique = dedup(source.read(block, buffer, Rank(rank, world)), work)
            assert not isinstance(unique, Refusal)
            keys_U = np.union1d(keys_U, unique.keys_U)
        owner_U = owners.of(keys_U)
        counts.append(int(np.bincount(owner_U).max()))
        seen = [np.union1d(keys, keys_U[owner_U == rank]) for rank, keys in enumerate(seen)]
        unions.append(max(map(len, seen)))
    return FirstWindow(tuple(counts or [0]), tuple(unions or [0]))
