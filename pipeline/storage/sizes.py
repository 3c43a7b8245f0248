"""How the caps become slabs and rings. Pure functions of numbers, so that they can be printed before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.storage.chunks import LEAST_GROWTH
from pipeline.storage.key_map import bytes_for
from pipeline.storage.places import most_rows
from pipeline.workflow import MOST_KEPT, Storage, format_size

SLACK = 1.25
"""Rows of a staging or outgoing buffer per key of the largest block of the first window."""
MANIFEST_BYTES = 64 * (MOST_KEPT + 2)
"""Of one chunk, in the manifests of all kept commits."""
RING_SHARE = 8
"""A ring has at least this part of its tier's cap: the first window may have fewer keys than those that follow."""


@dataclass(frozen=True, slots=True)
class FirstWindow:
    """What reading the first window found."""

    keys_of_blocks: tuple[int, ...]
    """Unique keys of each of its blocks."""
    union_of_first: tuple[int, ...]
    """Unique keys of its first block, of its first two together, and so on."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of each slab and ring (a ring is divided evenly among its buffers), and bytes of the rest."""

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


@dataclass(frozen=True, slots=True)
class Fit:
    """Sizes, and the look-ahead and block size that they allow."""

    sizes: Sizes
    look_ahead: int
    block_batches: int


Line = tuple[str, int, str]
"""Name, bytes, and what that is."""


class DoesNotFit(ValueError):
    """Says what is needed, what there is, and which setting to change."""


def fit(
    storage: Storage,
    row_bytes: int,
    window_bytes: int,
    look_ahead: int,
    window: FirstWindow,
    commit_bytes: int = 0,
    slack: float = SLACK,
) -> Sizes:
    """Divide the caps for a look-ahead; raises DoesNotFit with the first cap that is too small. `commit_bytes`: what
    lies on the disk besides the log."""
    keys = max(window.keys_of_blocks)
    union = window.union_of_first[min(look_ahead, len(window.union_of_first) - 1)]
    ring_rows = (look_ahead + 1) * int(slack * keys)
    device = storage.device // row_bytes
    if device < ring_rows + union:
        raise DoesNotFit(
            _too_small("device", storage.device, row_bytes, ring_rows + union, f"{union:,} rows of slab", look_ahead)
        )
    # One chunk buffer gathers what goes to disk.
    host = storage.host // row_bytes - storage.chunk_rows
    if host < ring_rows:
        raise DoesNotFit(
            _too_small("host", storage.host, row_bytes, ring_rows + storage.chunk_rows, "a chunk buffer", look_ahead)
        )
    disk_chunks = _disk_chunks(storage, row_bytes, device + host, commit_bytes)
    _check_map(storage, union)
    outgoing, staging = (
        min(cap - least, max(ring_rows, cap // RING_SHARE)) for cap, least in ((device, union), (host, 0))
    )
    return Sizes(
        row_bytes=row_bytes,
        device_rows=device - outgoing,
        outgoing_rows=outgoing,
        host_rows=host - staging,
        staging_rows=staging,
        chunk_rows=storage.chunk_rows,
        disk_chunks=disk_chunks,
        read_ring_bytes=read_ring_bytes(storage, window_bytes),
        window_bytes=window_bytes,
        map_bytes=storage.map,
    )


def _disk_chunks(storage: Storage, row_bytes: int, slab_rows: int, commit_bytes: int) -> int:
    chunk_bytes = log_chunk_bytes(storage.chunk_rows, row_bytes)
    chunks = max(0, storage.disk - commit_bytes) // chunk_bytes
    commit = -(-most_rows(slab_rows, storage.map) // storage.chunk_rows)
    if chunks < commit + 2 * LEAST_GROWTH:
        needed = (commit + 2 * LEAST_GROWTH) * chunk_bytes + commit_bytes
        raise DoesNotFit(
            f"storage.disk is {format_size(storage.disk)}; one whole commit of the rows that device and host can hold, "
            f"and a little more, takes {needed:,} bytes; raise storage.disk or lower storage.host or storage.map"
        )
    return chunks


def _check_map(storage: Storage, keys: int) -> None:
    if storage.map < (map_bytes := bytes_for(keys)):
        raise DoesNotFit(f"storage.map is {format_size(storage.map)}; {keys:,} keys need {map_bytes:,} bytes; raise it")


def log_chunk_bytes(chunk_rows: int, row_bytes: int) -> int:
    """Bytes of a chunk: its rows, its keys, and its lines in the manifests."""
    return chunk_rows * (row_bytes + 8) + MANIFEST_BYTES


def read_ring_bytes(storage: Storage, window_bytes: int) -> int:
    """What the read cap leaves for the read ring beside the shuffle window."""
    if storage.read <= window_bytes:
        raise DoesNotFit(
            f"storage.read is {format_size(storage.read)}, and the shuffle window with one row group alone takes "
            f"{window_bytes:,} bytes; raise storage.read or lower data.shuffle_window"
        )
    return storage.read - window_bytes


def _too_small(tier: str, cap: int, row_bytes: int, rows: int, what: str, look_ahead: int) -> str:
    return (
        f"storage.{tier} is {format_size(cap)}, {cap // row_bytes:,} rows of {row_bytes} bytes; needed are "
        f"{rows:,} rows ({rows * row_bytes:,} bytes: {what} and a ring of {look_ahead + 1} buffers); "
        f"raise storage.{tier} or lower schedule.batch_size"
    )


def table(sizes: Sizes, look_ahead: int, others: Sequence[Line] = ()) -> list[Line]:
    """Everything that a run allocates, for --explain."""
    row, buffers = sizes.row_bytes, look_ahead + 1
    return [
        ("device slab", sizes.device_rows * row, f"{sizes.device_rows:,} rows of {row} bytes"),
        (
            "device outgoing ring",
            sizes.outgoing_rows * row,
            f"{buffers} buffers of {sizes.outgoing_rows // buffers:,} rows",
        ),
        ("host slab", sizes.host_rows * row, f"{sizes.host_rows:,} rows"),
        ("host staging ring", sizes.staging_rows * row, f"{buffers} buffers of {sizes.staging_rows // buffers:,} rows"),
        ("host chunk buffer", sizes.chunk_rows * row, f"{sizes.chunk_rows:,} rows"),
        (
            "disk log",
            sizes.disk_chunks * log_chunk_bytes(sizes.chunk_rows, row),
            f"at most; {sizes.disk_chunks:,} chunks of {sizes.chunk_rows:,} rows, with space for one whole commit",
        ),
        ("read ring", sizes.read_ring_bytes, f"at most; {2 * look_ahead + 1} buffers"),
        ("shuffle window", sizes.window_bytes, "with one row group"),
        ("key map", sizes.map_bytes, f"at most; 23 to 46 bytes a key, so {sizes.map_bytes // 46:,} keys or more"),
        *others,
        ("slot marks", 22 * (sizes.device_rows + sizes.host_rows), "key, copy, free list and policy of each slot"),
    ]
