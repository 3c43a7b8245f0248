"""Read the first window before the run, and find the look-ahead and block size that the caps allow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from pipeline.data.agenda import Agenda
from pipeline.data.buffer import BufferTooSmall, ReadBuffer
from pipeline.data.source import Source
from pipeline.preflight.sizes import SLACK, DoesNotFit, FirstWindow, Fit, fit, read_ring_bytes
from pipeline.records import U64, Rank, Refusal
from pipeline.stages.dedup import KeyOwners, Workspace, dedup
from pipeline.stages.dedup_on_gpu import limit_of
from pipeline.workflow import Storage, Workflow


def rehearse(
    workflow: Workflow, storage: Storage, source: Source, agenda: Agenda, row_bytes: int, dense_bytes: int,
    say: Callable[[str], None], on_gpu: bool = False, world: int = 1,
) -> Fit:  # fmt: skip
    """Find the largest look-ahead, then the largest block size, that fit each of `world` workers; if they are smaller
    than the workflow's, `say` is called with the reason. `storage`: the caps, the device's in bytes; `dense_bytes`:
    bytes of the dense part in a commit.

    Raises DoesNotFit, with the numbers, if not even one batch fits.
    """
    schedule = workflow.schedule
    steps = reductions(schedule.look_ahead, schedule.block_batches)
    window_bytes = source.window_bytes(schedule.batch_size)
    # Dense parts: one of each kept commit, of the commit being written, of "best", and model.safetensors.
    besides_log = (workflow.commit.keep + 3) * dense_bytes
    why: Exception | None = None
    measured: dict[int, FirstWindow] = {}
    for look_ahead, block_batches in steps:
        buffer_bytes = read_ring_bytes(storage, window_bytes) // (2 * look_ahead + 1)
        try:
            if block_batches not in measured:
                num_blocks = -(-(schedule.look_ahead + 1) * schedule.block_batches // block_batches)
                measured[block_batches] = first_window(source, agenda, num_blocks, block_batches, buffer_bytes, world)
            keys = max(measured[block_batches].keys_of_blocks)
            if on_gpu and keys > limit_of(buffer_bytes):
                raise DoesNotFit(
                    f"blocks of {block_batches} batches have {keys:,} unique keys, and where each has {buffer_bytes:,} "
                    f"bytes, dedup's table on the GPU has room for {limit_of(buffer_bytes):,}; raise storage.read"
                )
            num_examples = -(-min(block_batches * schedule.batch_size, max(source.num_examples.values())) // world)
            needed = source.block_bytes(num_examples, block_batches)
            if needed > buffer_bytes:
                raise BufferTooSmall(needed, buffer_bytes)
            # The last attempt, a single batch, takes no more than it needs.
            slack = SLACK if look_ahead or block_batches > 1 else 1.0
            sizes = fit(
                storage,
                row_bytes,
                window_bytes,
                look_ahead,
                measured[block_batches],
                besides_log,
                slack,
                on_gpu,
                -(-workflow.workers.num_shards(world) // world),
            )
        except (DoesNotFit, BufferTooSmall) as too_small:
            why = why or too_small
            last = too_small
            continue
        if why:
            say(f"look-ahead {look_ahead}, blocks of {block_batches} batches: {why}")
        return Fit(sizes, look_ahead, block_batches, measured[block_batches])
    raise DoesNotFit(f"one batch alone does not fit: {last}")


def reductions(look_ahead: int, block_batches: int) -> list[tuple[int, int]]:
    """Pairs (look-ahead, batches of a block) to try in turn: first smaller look-aheads, then smaller blocks."""
    steps = [(ahead, block_batches) for ahead in range(look_ahead, -1, -1)]
    while block_batches > 1:
        block_batches //= 2
        steps.append((0, block_batches))
    return steps


def first_window(
    source: Source, agenda: Agenda, num_blocks: int, block_batches: int, buffer_bytes: int, world: int = 1
) -> FirstWindow:
    """Read and deduplicate the first blocks. With several workers the numbers of keys are those of the owner with the
    most keys."""
    owners = KeyOwners(range(world), world)
    buffer, work = ReadBuffer(buffer_bytes), Workspace(source.layout)
    seen: list[U64] = [np.empty(0, np.uint64)] * world
    counts: list[int] = []
    unions: list[int] = []
    keys_of_batch = 0
    for block in islice(agenda.blocks(block_batches), num_blocks):
        keys_U: U64 = np.empty(0, np.uint64)
        for rank in range(world):
            unique = dedup(source.read(block, buffer, Rank(rank, world)), work)
            assert not isinstance(unique, Refusal)
            keys_U = np.union1d(keys_U, unique.keys_U)
            keys_of_batch = max(keys_of_batch, *(len(index.unique_P) for index in unique.batches))
        owner_U = owners.of(keys_U)
        counts.append(int(np.bincount(owner_U).max()))
        seen = [np.union1d(keys, keys_U[owner_U == rank]) for rank, keys in enumerate(seen)]
        unions.append(max(map(len, seen)))
    return FirstWindow(tuple(counts), tuple(unions), keys_of_batch)
