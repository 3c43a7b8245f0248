"""Shared rows: rows of validation and test that also occur in train."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import SeenRows
from pipeline.kernels.hashing import hash_integers
from pipeline.records import U64

MIN_SHARE = 0.001
"""Minimum fraction of evaluated rows for shared rows to be a fault: fewer change a metric by less than its noise."""
SHARED_ERRORS = 5.0
ODD = np.uint64(0xD6E8FEB86659FD93)


def find_shared_rows(seen: SeenRows) -> list[Finding]:
    """Compare the fraction of evaluated rows that are in train with the fraction of train's rows that are duplicates,
    which is expected by chance if a few columns have few values."""
    hashes_N = row_hashes(seen)
    train_N = seen.rows_of("train")
    if not train_N.any():
        return []
    train_U, counts_U = np.unique(hashes_N[train_N], return_counts=True)
    num_train = int(train_N.sum())
    # An evaluated row can equal any row of train, a row of train any but itself.
    by_chance = float(counts_U[counts_U > 1].sum()) / num_train
    return [found for split in ("validation", "test") for found in _of_split(seen, split, hashes_N, train_U, by_chance)]


def row_hashes(seen: SeenRows) -> U64:
    """[N] hash of all features and labels of each row."""
    hashes_N = np.zeros(seen.num_rows, np.uint64)
    for column in seen.features.values():
        hash_integers((hashes_N + column.keys_U[column.codes_N]).view(np.int64), ODD, hashes_N)
    for label in range(seen.labels_NT.shape[1]):
        hash_integers((hashes_N + seen.labels_NT[:, label].astype(np.uint64)).view(np.int64), ODD, hashes_N)
    return hashes_N


def _of_split(seen: SeenRows, split: str, hashes_N: U64, train_U: U64, by_chance: float) -> Iterator[Finding]:
    rows = np.flatnonzero(seen.rows_of(split))
    if not len(rows):
        return
    at = np.minimum(np.searchsorted(train_U, hashes_N[rows]), len(train_U) - 1)
    shared = rows[train_U[at] == hashes_N[rows]]
    part = seen.share_of("train")
    # Only part of train was read, so only that part of the shared rows can be found.
    share = len(shared) / len(rows) / part
    expected = by_chance * len(rows)
    excess = len(shared) - expected
    if excess <= SHARED_ERRORS * math.sqrt(expected + 1):
        return
    example = int(shared[0])
    other = int(np.flatnonzero((hashes_N == hashes_N[example]) & seen.rows_of("train"))[0])
    about = "" if part == 1 else f"about, from {part:.1%} of train: "
    yield Finding(
        "shared_rows", "fault" if excess / len(rows) / part >= MIN_SHARE else "remark", (),
        f"{share:.2%} of the rows of {split} are rows of train, with the same label ({about}{len(shared):,} of "
        f"{len(rows):,} read), where {by_chance:.2%} of train's own rows occur twice; for example "
        f"{seen.place(example)}, which is {seen.place(other)}. The metrics of {split} are too good: take these rows "
        "out of one of them",
    )  # fmt: skip
