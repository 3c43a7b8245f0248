"""Guesses of what no cap covers, division of the caps into slabs and rings, and a table of memory and disk space by
purpose. Pure functions of numbers, so the sizes are known before a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.data.agenda import Agenda
from pipeline.device.device import Device
from pipeline.messages.sizes import MemoryShare, format_size_down, format_size_up
from pipeline.metrics.evaluation import evaluation_bytes
from pipeline.optim.rates import BYTES_PER_STEP
from pipeline.settings.caps import CapSizes, Storage
from pipeline.settings.run import MAX_KEPT
from pipeline.storage.chunks import MIN_GROWTH, max_chunks
from pipeline.storage.key_map import MAX_ROWS, bytes_for
from pipeline.storage.layout import RowLayout
from pipeline.storage.places import max_rows
from pipeline.storage.reads import BUFFERS_BYTES
from pipeline.workflow import Workflow

HEAPS_GROWTH = 0.7
"""Exponent of the growth of the number of keys with the number of examples, if only one block was read: approximately
that of the Criteo and Avazu logs."""
PLANNED_BYTES, DEDUP_BYTES = 20, 120
"""Bytes of index arrays per unique key of a block in flight, and of `dedup`'s tables per unique key of a block."""


def guessed_keys(window: FirstWindow, block_examples: int, examples: int) -> int:
    """Guess of a worker's number of keys after `examples`: a power of the number of examples, fitted to the first
    window (Heaps' law), with an exponent of at most 1. `block_examples`: examples per block of `window`."""
    unions, block = window.union_of_first, min(examples, block_examples)
    seen = min(examples, block * len(unions))
    if not seen or not unions[-1]:
        return 0
    return int(unions[-1] * (examples / seen) ** growth_between(block, unions[0], seen, unions[-1]))


def growth_between(before: float, keys_before: float, now: float, keys: float) -> float:
    """Exponent, 0 to 1, of the growth of the number of keys from `keys_before` after `before` examples to `keys` after
    `now` examples (Heaps' law); HEAPS_GROWTH if these numbers do not determine it."""
    if not 0 < before < now or not 0 < keys_before <= keys:
        return HEAPS_GROWTH
    return min(1.0, math.log(keys / keys_before) / math.log(now / before))


def most_evaluated(workflow: Workflow, agenda: Agenda) -> int:
    """Maximum number of examples that are evaluated together."""
    legs = [leg for leg in agenda.legs if workflow.metrics.progressive or leg.split != "train"]
    legs += agenda.passes.waiting if agenda.passes and workflow.metrics.score_arrivals else []
    return max([agenda.num_examples.get("test", 0), *map(agenda.size, legs)])


def other_buffers(workflow: Workflow, agenda: Agenda, row: RowLayout, keys_of_block: int) -> list[Line]:
    """Buffers that no cap covers. Their sizes depend on the batch or the evaluated splits, not on the table.
    `keys_of_block`: number of unique keys of the first window's largest block."""
    # The lengths of lists are unknown until they are read.
    values = sum(len(sequence.items) * -(-sequence.max_length // 2) for sequence in workflow.data.sequences)
    batch = workflow.schedule.batch_size * ((len(workflow.data.categories) + values) * row.num_weights)
    half = ", lists of half of max_length," if values else ""
    scores = evaluation_bytes(workflow, most_evaluated(workflow, agenda))
    lines = [
        ("batch", 8 * batch, f"embeddings of a batch{half} and their gradients, without the model's own activations"),
        ("log readers", BUFFERS_BYTES, "buffers of the reads in flight"),
        ("scores", scores, "for the metrics of the largest split" + " with its groups" * bool(workflow.metrics.group)),
    ]
    if workflow.optimizer.rows.semantics == "dense":
        schedule = workflow.schedule
        steps = schedule.epochs * -(-agenda.num_examples["train"] // schedule.batch_size)
        lines += [
            ("rates", BYTES_PER_STEP * steps, f"learning rate and L2 of each of {steps:,} steps"),
            ("rows that are scored", keys_of_block * row.num_bytes * 3 // 2, "caught-up copies of the rows of a block"),
        ]
    return lines


SLACK = 1.25
"""Number of rows of a staging or outgoing buffer per key of the first window's largest block."""
MANIFEST_BYTES = 64 * (MAX_KEPT + 2)
"""Bytes per chunk in the manifests of all kept commits."""
RING_SHARE = 8
"""Divisor of a tier's cap: a ring gets at least 1/8 of it, since later windows may have more keys than the first. On a
GPU, where each ring is in both tiers, a ring gets at least 1/16 of the smaller tier's cap."""
INDEX_SHARE = 3.25
"""GPU bytes per byte of the read ring: its copy, the keys and indices of its blocks, and the plan's arrays."""
DEDUP_SHARE = 10.0
"""GPU bytes for deduplicating a block, per byte of its buffer in the read ring. Each value takes at most 24 bytes of
hash table, 6 of positions, and, if one batch is the whole block, 44 for sorting."""

MARK_BYTES = 34
"""Bytes of metadata per slot."""

Line = tuple[str, int, str]
"""Name, bytes, explanation."""


@dataclass(frozen=True, slots=True)
class FirstWindow:
    """Numbers of unique keys in the first window."""

    keys_of_blocks: tuple[int, ...]
    """Number of unique keys of each block."""
    union_of_first: tuple[int, ...]
    """Number of unique keys of the first block, of the first two blocks together, and so on."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of each slab and ring, and bytes of everything else. A ring is divided evenly among its buffers."""

    row_bytes: int
    device_rows: int
    outgoing_rows: int
    host_rows: int
    staging_rows: int
    chunk_rows: int
    disk_chunks: int
    read_ring_bytes: int
    window_bytes: int
    map_bytes: int
    known_bytes: int = 0
    """Bytes for the keys of future blocks; 0 if no policy needs them."""
    gpu_bytes: int = 0
    """Bytes on the GPU for copies of the read buffers, indices and dedup's workspace; 0 without a GPU. With a GPU, both
    rings are in both tiers."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu_bytes > 0

    def read_buffer_bytes(self, num_buffers: int) -> int:
        """Bytes of one of `num_buffers` buffers of the read ring. With a GPU, each buffer has a copy and an index in
        GPU memory, so its size is also limited by `gpu_bytes`."""
        whole = self.read_ring_bytes // num_buffers
        if not self.on_gpu:
            return whole
        return min(whole, int(self.gpu_bytes / (INDEX_SHARE * num_buffers + DEDUP_SHARE)))


@dataclass(frozen=True, slots=True)
class Fit:
    """Sizes, with the look-ahead and block size that fit them."""

    sizes: Sizes
    look_ahead: int
    block_batches: int
    window: FirstWindow = FirstWindow((), (0,))


class DoesNotFit(ValueError):
    """The caps are too small. The message says what is needed, what is available, and which setting to change."""


def fit(
    storage: CapSizes,
    row_bytes: int,
    window_bytes: int,
    look_ahead: int,
    window: FirstWindow,
    commit_bytes: int = 0,
    slack: float = SLACK,
    on_gpu: bool = False,
    num_owned: int = 1,
) -> Sizes:
    """Divide the caps for a look-ahead. `commit_bytes`: bytes on the disk in addition to the log; `num_owned`: number
    of shards that share the caps. Raises DoesNotFit, naming the first cap that is too small."""
    keys = max(window.keys_of_blocks)
    union = window.union_of_first[min(look_ahead, len(window.union_of_first) - 1)]
    ring_rows = (look_ahead + 1) * int(slack * keys)
    ring_bytes = read_ring_bytes(storage, window_bytes)
    copies = gpu_bytes(ring_bytes, 2 * look_ahead + 1) if on_gpu else 0
    rings = 2 if on_gpu else 1
    device = (storage.device - copies) // row_bytes
    if device < rings * ring_rows + union:
        needed = rings * ring_rows + union
        what = f"{union:,} rows of slab"
        raise DoesNotFit(_too_small("device", storage.device, row_bytes, needed, what, look_ahead, rings, copies))
    # The host's cap includes one chunk buffer, for gathering rows to be written to disk.
    host = storage.host // row_bytes - storage.chunk_rows
    if host < rings * ring_rows:
        needed = rings * ring_rows + storage.chunk_rows
        raise DoesNotFit(_too_small("host", storage.host, row_bytes, needed, "a chunk buffer", look_ahead, rings))
    disk_chunks = _disk_chunks(storage, row_bytes, device + host, commit_bytes, num_owned)
    _check_map(storage, union)
    outgoing, staging = _rings(device - union, device, host, ring_rows, on_gpu)
    return Sizes(
        row_bytes=row_bytes,
        device_rows=device - outgoing - (staging if on_gpu else 0),
        outgoing_rows=outgoing,
        host_rows=host - staging - (outgoing if on_gpu else 0),
        staging_rows=staging,
        chunk_rows=storage.chunk_rows,
        disk_chunks=disk_chunks,
        read_ring_bytes=ring_bytes,
        window_bytes=window_bytes,
        map_bytes=storage.map,
        known_bytes=storage.known_bytes,
        gpu_bytes=copies,
    )


def _rings(spare: int, device: int, host: int, ring_rows: int, on_gpu: bool) -> tuple[int, int]:
    """Rows of the outgoing and staging rings. `spare`: the device's rows beyond those of the window's union."""
    if not on_gpu:
        return (min(spare, max(ring_rows, device // RING_SHARE)), min(host, max(ring_rows, host // RING_SHARE)))
    both = min(spare // 2, host // 2, max(ring_rows, min(device, host) // (2 * RING_SHARE)))
    return both, both


def gpu_bytes(ring_bytes: int, num_buffers: int) -> int:
    """GPU memory for everything but rows: copies of the read buffers, indices, and dedup's workspace."""
    return int(INDEX_SHARE * ring_bytes + DEDUP_SHARE * ring_bytes / num_buffers)


def with_device_in_bytes(storage: Storage, free_bytes: int) -> Storage:
    """Return the caps with storage.device in bytes; a share is relative to `free_bytes`."""
    if not isinstance(storage.device, MemoryShare):
        return storage
    return storage.model_copy(update={"device": storage.device.of(free_bytes)})


def _disk_chunks(storage: CapSizes, row_bytes: int, slab_rows: int, commit_bytes: int, num_owned: int) -> int:
    chunk_bytes = log_chunk_bytes(storage.chunk_rows, row_bytes)
    chunks = max(0, storage.disk - commit_bytes) // chunk_bytes
    minimum = max_chunks(max_rows(slab_rows, storage.map), storage.chunk_rows, num_owned) + 2 * MIN_GROWTH * num_owned
    if minimum > (most := MAX_ROWS // storage.chunk_rows):
        raise DoesNotFit(
            f"storage.device and storage.host have room for {slab_rows:,} rows, more than a log can take in one commit "
            f"({MAX_ROWS:,}); lower storage.host"
        )
    if chunks < minimum:
        needed = minimum * chunk_bytes + commit_bytes
        raise DoesNotFit(
            f"storage.disk is {format_size_down(storage.disk)}; one whole commit of the rows that device and host can "
            f'hold, and a little more, takes more; raise storage.disk to "{format_size_up(needed)}", or lower '
            "storage.host or storage.map"
        )
    return min(chunks, most)


def _check_map(storage: CapSizes, keys: int) -> None:
    if storage.map < (map_bytes := bytes_for(keys)):
        raise DoesNotFit(
            f"storage.map is {format_size_down(storage.map)}; {keys:,} keys need more; "
            f'raise storage.map to "{format_size_up(map_bytes)}"'
        )


def log_chunk_bytes(chunk_rows: int, row_bytes: int) -> int:
    """Bytes of a chunk: its rows, its keys, and its entries in the manifests."""
    return chunk_rows * (row_bytes + 8) + MANIFEST_BYTES


def read_ring_bytes(storage: CapSizes, window_bytes: int) -> int:
    """Bytes that the read cap leaves for the read ring. Raises DoesNotFit if the shuffle window takes all of it."""
    if storage.read <= window_bytes:
        raise DoesNotFit(
            f"storage.read is {format_size_down(storage.read)}, and the shuffle window with one row group alone takes "
            f'{format_size_up(window_bytes)}; raise storage.read to "{format_size_up(2 * window_bytes)}" or lower '
            "data.shuffle_window"
        )
    return storage.read - window_bytes


def _too_small(
    tier: str, cap: int, row_bytes: int, rows: int, what: str, look_ahead: int, rings: int = 1, copies: int = 0
) -> str:
    gpu = (
        f" and {format_size_up(copies)} for copies of the read ring, indices and dedup (lower storage.read)"
        if copies
        else ""
    )
    needed = format_size_up(rows * row_bytes + copies)
    return (
        f"storage.{tier} is {format_size_down(cap)}, {cap // row_bytes:,} rows of {row_bytes} bytes; needed are "
        f"{rows:,} rows ({what} and {'a ring' if rings == 1 else f'{rings} rings'} of {look_ahead + 1} buffers){gpu}; "
        f'raise storage.{tier} to "{needed}" or lower schedule.batch_size'
    )


def table(sizes: Sizes, look_ahead: int, others: Sequence[Line] = ()) -> list[Line]:
    """Lines for everything that a run allocates; `others`: further lines."""
    row = sizes.row_bytes
    outgoing, staging = (_ring(rows, row, look_ahead) for rows in (sizes.outgoing_rows, sizes.staging_rows))
    both = [("host outgoing ring", *outgoing), ("host staging ring", *staging)]
    return [
        *device_table(sizes, look_ahead),
        ("host slab", sizes.host_rows * row, f"{sizes.host_rows:,} rows"),
        *(both if sizes.on_gpu else both[1:]),
        ("host chunk buffer", sizes.chunk_rows * row, f"{sizes.chunk_rows:,} rows"),
        (
            "disk log",
            sizes.disk_chunks * log_chunk_bytes(sizes.chunk_rows, row),
            f"at most; {sizes.disk_chunks:,} chunks of {sizes.chunk_rows:,} rows, with space for one whole commit",
        ),
        ("read ring", sizes.read_ring_bytes, f"at most; {2 * look_ahead + 1} buffers"),
        ("shuffle window", sizes.window_bytes, "with the row group being read"),
        *([("known keys", sizes.known_bytes, "at most; keys of coming blocks")] if sizes.known_bytes else []),
        ("key map", sizes.map_bytes, f"at most; 12 to 16 bytes a key, so {sizes.map_bytes // 16:,} keys or more"),
        *others,
        (
            "slot marks",
            MARK_BYTES * (sizes.device_rows + sizes.host_rows),
            "key, copy, free list, uses and policy of each slot",
        ),
    ]


def device_table(sizes: Sizes, look_ahead: int) -> list[Line]:
    """Lines for device memory, excluding the dense model and the current batch."""
    row = sizes.row_bytes
    lines = [
        ("device slab", sizes.device_rows * row, f"{sizes.device_rows:,} rows of {row} bytes"),
        ("device outgoing ring", *_ring(sizes.outgoing_rows, row, look_ahead)),
    ]
    if sizes.on_gpu:
        lines.append(("device staging ring", *_ring(sizes.staging_rows, row, look_ahead)))
        indices = "at most; copies of the read buffers, their indices, dedup's table"
        lines.append(("device indices", sizes.gpu_bytes, indices))
    return lines


def _ring(rows: int, row_bytes: int, look_ahead: int) -> tuple[int, str]:
    return rows * row_bytes, f"{look_ahead + 1} buffers of {rows // (look_ahead + 1):,} rows"


def no_room(error: BaseException, sizes: Sizes, look_ahead: int, device: Device) -> str:
    """Out-of-memory message, with the table; with a GPU, the table covers only GPU memory."""
    planned = (device_table if device.on_gpu else table)(sizes, look_ahead)
    lines = "\n".join(printed(planned))
    of_tier = {
        tier: sum(num_bytes for name, num_bytes, _ in planned if name.startswith(tier)) for tier in ("device", "host")
    }
    tier = max(of_tier, key=lambda name: of_tier[name])
    # The size of the shortfall is unknown.
    less = format_size_down(of_tier[tier] * 3 // 4)
    return (
        f"out of memory ({error})\n{lines}\nplus the dense model, its gradients and the activations of a batch; "
        f"{format_size_down(device.free_bytes())} are free; lower storage.{tier} for more, such as --set "
        f"'storage.{tier}={less}'"
    )


def printed(lines: Sequence[Line]) -> list[str]:
    """Lines of a table as text, with sizes in the units of settings."""
    return [f"{name:22} {format_size_up(num_bytes):>10}   {what}" for name, num_bytes, what in lines]
