"""Fingerprint of the table and the dense part: equal fingerprints mean equal bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from pipeline.commits.flush import live_at
from pipeline.kernels.row_hash import add_row_hashes
from pipeline.records import U32
from pipeline.storage.log import Log
from pipeline.storage.places import Places
from pipeline.storage.tier import check_keys
from pipeline.storage.wide_rows import widened


def table_hash(
    places: Places, log: Log, chunk_RW: U32, catch_up: Callable[[U32], None] = lambda rows_UW: None
) -> tuple[int, int]:
    """Return the sum, modulo 2^128, of the hashes of all live rows (without tags), and the number of these rows. All
    rows must be in the log.

    `catch_up`: applies missed steps to widened copies of rows (dense semantics).
    """
    total = np.zeros(2, np.uint64)
    count = 0
    for chunk in places.chunks.live().tolist():
        at, keys = live_at(places, log, chunk)
        log.gather(at, chunk_RW[: len(at)])
        check_keys(log, at, chunk_RW[: len(at)], keys)
        wide_UX = widened(log.layout, chunk_RW[: len(at)])
        catch_up(wide_UX)
        add_row_hashes(wide_UX, log.layout.wide.tag_at, total)
        count += len(at)
    return int(total[0]) << 64 | int(total[1]), count


def fingerprint(rows: int, dense: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hexadecimal digest of the table hash and of named arrays (parameters, buffers, optimizer state), in the given
    order."""
    digest = hashlib.blake2b(rows.to_bytes(16, "little"), digest_size=16)
    for name, array in dense:
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
