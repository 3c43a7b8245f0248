"""How stale the log is, chunk by chunk: kept by `plan` as keys move, without reading a file."""

from __future__ import annotations

import numpy as np

from pipeline.records import I64
from pipeline.storage.shards import ONE_SHARD, Shards

MIN_GROWTH = 8
"""Chunks of each shard that may always be added before a commit is brought forward."""


def max_chunks(num_rows: int, chunk_rows: int, num_owned: int) -> int:
    """Chunks that so many rows of so many shards fill at most: one row in each, and the others in full chunks."""
    begun = min(num_rows, num_owned)
    return begun + (num_rows - begun) // chunk_rows


class Chunks:
    """A chunk has R rows of one shard, and some of them are stale: a later version of their key exists, or they are
    padding.

    Chunk c lies in shard c % S, as the chunk c // S of that shard's own. A shard's chunks are given out in order and
    never again, so a chunk's number is position // R for ever. `present` counts the chunks on disk: added ones, less
    those that a commit has deleted. All is of the shards that this process owns.
    """

    def __init__(self, rows: int, multiple: float = 2.0, growth: float = 1.0, shards: Shards = ONE_SHARD) -> None:
        """`multiple`: a commit refers to at most so many rows, stale ones counted, per live row (and one chunk a
        shard). `growth`: rows that may be written between two commits, as a share of the live rows."""
        self.rows = rows
        self.shards = shards
        self._multiple, self._growth_share = multiple, growth
        self._stale_C: I64 = np.full(64, rows, np.int64)
        self._num_S: I64 = np.zeros(shards.num, np.int64)
        """Chunks of each shard given out so far."""
        self.present = 0
        self.begin_growth(0, 0)

    @property
    def num(self) -> int:
        """Chunks given out so far."""
        return int(self._num_S.sum())

    @property
    def tails(self) -> tuple[int, ...]:
        """Rows of each shard's own arrays, 0 for those that others own: where its next chunk begins."""
        return tuple((self._num_S * self.rows).tolist())

    @property
    def _end(self) -> int:
        """No chunk has this number or a higher one yet."""
        return int(self._num_S.max()) * self.shards.num

    def of_rows(self, num_rows: int) -> int:
        """Chunks that so many rows of one shard fill, the last one perhaps in part."""
        return -(-num_rows // self.rows)

    def maximum(self, num_rows: int) -> int:
        """Chunks that so many rows fill at most, whichever shards they belong to."""
        return max_chunks(num_rows, self.rows, len(self.shards.owned))

    def add(self, num_rows: int, shard: int = 0) -> I64:
        """Give out positions for so many rows of a shard, [num_rows] chunk after chunk. The rest of the last chunk is
        stale at once."""
        first, added = int(self._num_S[shard]), self.of_rows(num_rows)
        self._num_S[shard] += added
        if self._end > len(self._stale_C):
            grown = np.full(max(self._end, 2 * len(self._stale_C)), self.rows, np.int64)
            grown[: len(self._stale_C)] = self._stale_C
            self._stale_C = grown
        own_N, row_N = np.divmod(np.arange(num_rows), self.rows)
        chunks = (first + np.arange(added)) * self.shards.num + shard
        self._stale_C[chunks] = 0
        self._stale_C[chunks[-1:]] = added * self.rows - num_rows
        self.present += added
        return chunks[own_N] * self.rows + row_N

    def load(self, tails: tuple[int, ...], present: int) -> None:
        """Begin with shards that end at `tails`, of which so many chunks are on disk; `hold` says what is in them."""
        owned = list(self.shards.owned)
        self._num_S[owned] = np.array(tails)[owned] // self.rows
        self._stale_C = np.full(max(64, 2 * self._end), self.rows, np.int64)
        self.present = present

    def hold(self, chunk: int, num_rows: int) -> None:
        """The chunk has so many rows, and padding."""
        self._stale_C[chunk] = self.rows - num_rows

    def forget(self, at_N: I64) -> None:
        """The rows at these positions have a later version from now on."""
        self._stale_C[: self._end] += self._count(at_N)

    def _count(self, at_N: I64) -> I64:
        return np.bincount(at_N // self.rows, minlength=self._end)

    def live(self) -> I64:
        """Numbers of the chunks that hold a live row, ascending."""
        return np.flatnonzero(self._stale_C[: self._end] < self.rows)

    def stale(self, chunk: int) -> int:
        return int(self._stale_C[chunk])

    @property
    def live_rows(self) -> int:
        return int((self.rows - self._stale_C[: self._end]).sum())

    def sparse(self) -> I64:
        """Numbers of the chunks with live rows, but so few that a commit must not refer to them; fewest first."""
        sparse = np.flatnonzero(self._sparse(self._stale_C[: self._end]))
        return sparse[np.argsort(-self._stale_C[sparse], kind="stable")]

    def merged(self, stale_at_N: I64) -> int:
        """Chunks that the live rows of such chunks will fill, once the rows at these positions are stale, too."""
        stale_C = self._stale_C[: self._end] + self._count(stale_at_N)
        live_C = np.where(self._sparse(stale_C), self.rows - stale_C, 0)
        return int((-(-live_C.reshape(-1, self.shards.num).sum(axis=0) // self.rows)).sum())

    def _sparse(self, stale_C: I64) -> np.ndarray:
        live_C = self.rows - stale_C
        return (live_C > 0) & (live_C * self._multiple < self.rows)

    @property
    def growth(self) -> int:
        """Chunks added since the last commit."""
        return self.num - self._since

    def begin_growth(self, live_rows: int, room: int, at_least: int = 0) -> None:
        """A commit of so many live rows was taken, and the disk has room for so many chunks more. Half of it at most
        is for what comes until the next commit, the other half for that commit."""
        self._since = self.num
        share = self.of_rows(int(self._growth_share * live_rows))
        minimum = MIN_GROWTH * len(self.shards.owned)
        self.allowance = max(minimum, at_least, min(share, room // 2))
        """Chunks that may be added, or be due for merging, until a commit is brought forward."""
