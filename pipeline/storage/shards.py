"""Shards: the shard of a key, the folder of a shard, and the assignment of shards to workers.

The number of shards is fixed when a table is created. If the number of workers changes, the same directories are
reassigned and nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I64, U64

MAX_SHARDS = 1024


@dataclass(frozen=True, slots=True)
class Shards:
    """Number of shards of a table, and the shards that this process owns."""

    num: int = 1
    owned: tuple[int, ...] = (0,)
    """Shard numbers, ascending."""

    @classmethod
    def all(cls, num: int) -> Shards:
        return cls(num, tuple(range(num)))


ONE_SHARD = Shards()


def shard_of(keys_U: U64, num: int) -> I64:
    """[U] shard of each key, from the high bits of its hash."""
    return (((keys_U >> np.uint64(32)) * np.uint64(num)) >> np.uint64(32)).astype(np.int64)


def shard_folder(path: Path, shard: int, num: int) -> Path:
    """Folder of a shard of the table at `path`; `path` itself if the table has one shard."""
    return path if num == 1 else path / f"{shard:0{len(str(num - 1))}}"


def most_keys(keys_of_shards: Sequence[int], world: int) -> int:
    """Maximum number of keys per worker, given the number of workers."""
    keys = sorted(keys_of_shards)
    return sum(keys[-len(keys) // world :])


def deal_shards(
    num: int,
    workers: Sequence[str],
    reach: Mapping[str, Collection[int]],
    before: Mapping[str, Collection[int]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Assign each of `num` shards to a worker that can open its directory.

    The assignment is as even as `reach` allows: it minimizes the sum of squares of the workers' numbers of shards.
    Among such assignments, it moves the fewest shards compared with `before`, which may name other workers. It is
    deterministic. Raises ValueError, with the shards, if there are shards that no worker can reach.

    Computed as a minimum-cost flow by successive shortest paths (Ahuja, Magnanti, Orlin, Network Flows, 9.7): a worker
    that gets a shard may pass another shard on to another worker.
    """
    before = before or {}
    cost_SW = np.full((num, len(workers)), np.inf)
    for w, worker in enumerate(workers):
        cost_SW[list(reach.get(worker, ())), w] = 1
        kept = set(before.get(worker, ())) & set(reach.get(worker, ()))
        cost_SW[list(kept), w] = 0
    if lost := np.flatnonzero(~(cost_SW < np.inf).any(axis=1)).tolist():
        raise ValueError(
            f"shards {', '.join(map(str, lost))} of {num}: none of the {len(workers)} workers reaches their folders; "
            "start workers on the machines that have them"
        )
    worker_S: I64 = np.full(num, -1, np.int64)
    for shard in range(num):
        _give(shard, worker_S, cost_SW)
    return {worker: tuple(np.flatnonzero(worker_S == w).tolist()) for w, worker in enumerate(workers)}


def _give(shard: int, worker_S: I64, cost_SW: NDArray[np.float64]) -> None:
    """Assign the shard along the cheapest path: each worker on the path passes one of its shards to the next."""
    held_H = np.flatnonzero(worker_S >= 0)
    holder_H = worker_S[held_H]
    step_HW = cost_SW[held_H] - cost_SW[held_H, holder_H][:, None]
    cost_W, given_W = cost_SW[shard].copy(), np.full(cost_SW.shape[1], shard)
    while len(held_H):
        passed_HW = cost_W[holder_H][:, None] + step_HW
        by_W = passed_HW.argmin(axis=0)
        less_W = passed_HW[by_W, np.arange(len(cost_W))] < cost_W
        if not less_W.any():
            break
        cost_W[less_W] = passed_HW[by_W[less_W], less_W.nonzero()[0]]
        given_W[less_W] = held_H[by_W[less_W]]
    # The factor makes any loss of evenness cost more than all moves together.
    load_W = np.bincount(holder_H, minlength=len(cost_W))
    to, given = int((cost_W + (2 * load_W + 1) * (len(worker_S) + 1)).argmin()), -1
    while given != shard:
        given = int(given_W[to])
        to, worker_S[given] = int(worker_S[given]), to
