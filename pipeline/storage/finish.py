"""The end of a run: every row into the log, and one number that tells whether two tables hold the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from pipeline.kernels.row_hash import add_row_hashes
from pipeline.records import I32, RESERVED, U32
from pipeline.storage.key_map import DISK, place
from pipeline.storage.layout import RowLayout, row_keys
from pipeline.storage.log import Log
from pipeline.storage.places import Places, Slots
from pipeline.storage.tier import Tier


def flush(places: Places, device: Tier, host: Tier, log: Log, chunk_RW: U32) -> None:
    """Append the rows of device and host to the log. Only for a drained pipeline: places must be true of the bytes."""
    for slots, tier in ((places.device, device), (places.host, host)):
        used = np.flatnonzero(slots.keys_S != RESERVED).astype(np.int32)
        for first in range(0, len(used), len(chunk_RW)):
            _append(used[first : first + len(chunk_RW)], slots, tier, places, log, chunk_RW)
    log.seal(places.tail)


def _append(part: I32, slots: Slots, tier: Tier, places: Places, log: Log, chunk_RW: U32) -> None:
    rows_RW = chunk_RW[: len(part)]
    at = places.tail + np.arange(len(part))
    tier.gather(part, rows_RW)
    log.scatter(at, rows_RW)
    places.map.move(slots.keys_S[part], place(DISK, at))
    slots.release(part)
    places.tail += places.caps.whole_chunks(len(part))


def table_hash(places: Places, log: Log, layout: RowLayout, chunk_RW: U32) -> tuple[int, int]:
    """Sum modulo 2^128 of the hashes of all live rows, tag left out, and their number. All rows are in the log."""
    total = np.zeros(2, np.uint64)
    count = 0
    for first in range(0, places.tail, log.chunk_rows):
        at = first + np.arange(log.chunk_rows)
        log.gather(at, chunk_RW)
        live = places.map.find(row_keys(chunk_RW)) == place(DISK, at)
        add_row_hashes(chunk_RW, layout.tag_at, live, total)
        count += int(live.sum())
    return int(total[0]) << 64 | int(total[1]), count


def fingerprint(rows: int, dense: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hex digest of the table's hash and of named arrays, in the order given: parameters, buffers, optimizer state."""
    digest = hashlib.blake2b(rows.to_bytes(16, "little"), digest_size=16)
    for name, array in dense:
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
