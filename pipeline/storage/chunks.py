"""Chunks of the log: the number of stale rows in each, which `plan` keeps up to date as keys move without reading a
file, and their ordinals."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pipeline.records import I64
from pipeline.storage.key_map import DISK, place, row_of
from pipeline.storage.shards import ONE_SHARD, Shards

NONE = -1


class Ordinals:
    """Ordinal of each chunk on disk, reused once its chunk is deleted: chunk numbers grow without bound, and the key
    map needs few bits for the row of a chunk. `len` returns the number of chunks on disk."""

    def __init__(self) -> None:
        self._of_C: I64 = np.full(64, NONE, np.int64)
        """Ordinal of each chunk; NONE if the chunk is not on disk."""
        self._chunk_O: I64 = np.full(64, NONE, np.int64)
        self._free = list(range(63, -1, -1))

    def __len__(self) -> int:
        return len(self._chunk_O) - len(self._free)

    def add(self, chunks: I64) -> None:
        """Assign an ordinal to each of these chunks, which have none."""
        while len(self._free) < len(chunks):
            self._free += range(2 * len(self._chunk_O) - 1, len(self._chunk_O) - 1, -1)
            self._chunk_O = _doubled(self._chunk_O)
        while len(chunks) and chunks.max() >= len(self._of_C):
            self._of_C = _doubled(self._of_C)
        given = [self._free.pop() for _ in chunks]
        self._of_C[chunks] = given
        self._chunk_O[given] = chunks

    def keep(self, chunks: Collection[int]) -> None:
        """Free the ordinals of all other chunks."""
        held = np.flatnonzero(self._chunk_O != NONE)
        gone = held[~np.isin(self._chunk_O[held], np.fromiter(chunks, np.int64, len(chunks)))]
        self._of_C[self._chunk_O[gone]] = NONE
        self._chunk_O[gone] = NONE
        self._free += gone[::-1].tolist()

    def short(self, at_N: I64, chunk_rows: int) -> I64:
        """Log positions with the ordinals of their chunks in place of the chunks' numbers."""
        chunk_N = at_N // chunk_rows
        return at_N + (self._of_C[chunk_N] - chunk_N) * chunk_rows

    def long(self, short_N: I64, chunk_rows: int) -> I64:
        """The inverse of `short`."""
        ordinal_N = short_N // chunk_rows
        return short_N + (self._chunk_O[ordinal_N] - ordinal_N) * chunk_rows


def _doubled(array: I64) -> I64:
    return np.concatenate([array, np.full(len(array), NONE, np.int64)])


MIN_GROWTH = 8
"""Number of chunks per shard that may always be added before an early commit."""


def max_chunks(num_rows: int, chunk_rows: int, num_owned: int) -> int:
    """Maximum number of chunks that `num_rows` rows of `num_owned` shards fill: each shard may begin a chunk for a
    single row, and the other rows are in full chunks."""
    begun = min(num_rows, num_owned)
    return begun + (num_rows - begun) // chunk_rows


class Chunks:
    """Number of stale rows in each chunk of the shards that this process owns.

    A chunk has R rows of one shard. A row is stale if a later version of its key exists, or if it is padding. Chunk c
    is chunk c // S of shard c % S. The chunk numbers of a shard are allocated in order and never reused, so the chunk
    of a log position is always position // R.
    """

    def __init__(self, rows: int, multiple: float = 2.0, growth: float = 1.0, shards: Shards = ONE_SHARD) -> None:
        """`multiple`: maximum number of rows, including stale ones, that a commit refers to per live row (in addition
        to one chunk per shard). `growth`: number of rows that may be written between two commits, as a fraction of the
        live rows."""
        self.rows = rows
        self.shards = shards
        self._multiple, self._growth_share = multiple, growth
        self._stale_C: I64 = np.full(64, rows, np.int64)
        self._num_S: I64 = np.zeros(shards.num, np.int64)
        """Number of chunks allocated so far, per shard."""
        self._on_disk = Ordinals()
        self.begin_growth(0, 0)

    @property
    def present(self) -> int:
        """Number of chunks on disk: those added minus those deleted by commits."""
        return len(self._on_disk)

    def keep(self, chunks: Collection[int]) -> None:
        """Record that a commit deleted all other chunks."""
        self._on_disk.keep(chunks)

    def places_of(self, at_N: I64) -> I64:
        """Places of these log positions in the key map. Places use no more bits than the chunks on disk need."""
        return place(DISK, self._on_disk.short(at_N, self.rows))

    def positions_of(self, places_N: I64) -> I64:
        """Log positions of these places on disk."""
        return self._on_disk.long(row_of(places_N), self.rows)

    @property
    def num(self) -> int:
        """Number of chunks allocated so far."""
        return int(self._num_S.sum())

    @property
    def tails(self) -> tuple[int, ...]:
        """Row at which each shard's next chunk begins, counted within the shard; 0 for shards of other workers."""
        return tuple((self._num_S * self.rows).tolist())

    @property
    def _end(self) -> int:
        """Exclusive upper bound of the chunk numbers allocated so far."""
        return int(self._num_S.max()) * self.shards.num

    def of_rows(self, num_rows: int) -> int:
        """Number of chunks that `num_rows` rows of one shard fill, including a partly filled last chunk."""
        return -(-num_rows // self.rows)

    def maximum(self, num_rows: int) -> int:
        """Maximum number of chunks that `num_rows` rows fill, whichever shards they belong to."""
        return max_chunks(num_rows, self.rows, len(self.shards.owned))

    def add(self, num_rows: int, shard: int = 0) -> I64:
        """Allocate log positions [num_rows] for rows of a shard, chunk by chunk. The unused rows of the last chunk
        count as stale from the start."""
        first, added = int(self._num_S[shard]), self.of_rows(num_rows)
        self._num_S[shard] += added
        if self._end > len(self._stale_C):
            grown = np.full(max(self._end, 2 * len(self._stale_C)), self.rows, np.int64)
            grown[: len(self._stale_C)] = self._stale_C
            self._stale_C = grown
        chunks = (first + np.arange(added)) * self.shards.num + shard
        self._stale_C[chunks] = 0
        self._stale_C[chunks[-1:]] = added * self.rows - num_rows
        self._on_disk.add(chunks)
        return (chunks[:, None] * self.rows + np.arange(self.rows)).reshape(-1)[:num_rows]

    def load(self, tails: tuple[int, ...], present: Collection[int]) -> None:
        """Start from shards that end at `tails` and have the chunks `present` on disk; `hold` sets the rows of each."""
        owned = list(self.shards.owned)
        self._num_S[owned] = np.array(tails)[owned] // self.rows
        self._stale_C = np.full(max(64, 2 * self._end), self.rows, np.int64)
        self._on_disk.add(np.sort(np.fromiter(present, np.int64, len(present))))

    def hold(self, chunk: int, num_rows: int) -> None:
        """Record that the chunk has `num_rows` live rows; the others are padding."""
        self._stale_C[chunk] = self.rows - num_rows

    def forget(self, at_N: I64) -> None:
        """Mark the rows at these positions as stale: a later version exists."""
        self._stale_C[: self._end] += self._count(at_N)

    def _count(self, at_N: I64) -> I64:
        return np.bincount(at_N // self.rows, minlength=self._end)

    def live(self) -> I64:
        """Numbers of the chunks that have at least one live row, ascending."""
        return np.flatnonzero(self._stale_C[: self._end] < self.rows)

    def stale(self, chunk: int) -> int:
        return int(self._stale_C[chunk])

    @property
    def live_rows(self) -> int:
        return int((self.rows - self._stale_C[: self._end]).sum())

    def sparse(self) -> I64:
        """Numbers of the chunks that have too few live rows for a commit to refer to them, fewest first. Excludes
        chunks without live rows."""
        sparse = np.flatnonzero(self._sparse(self._stale_C[: self._end]))
        return sparse[np.argsort(-self._stale_C[sparse], kind="stable")]

    def merged(self, stale_at_N: I64) -> int:
        """Number of chunks that the live rows of all sparse chunks fill after the rows at `stale_at_N` become stale."""
        stale_C = self._stale_C[: self._end] + self._count(stale_at_N)
        live_C = np.where(self._sparse(stale_C), self.rows - stale_C, 0)
        return int((-(-live_C.reshape(-1, self.shards.num).sum(axis=0) // self.rows)).sum())

    def _sparse(self, stale_C: I64) -> np.ndarray:
        live_C = self.rows - stale_C
        return (live_C > 0) & (live_C * self._multiple < self.rows)

    @property
    def growth(self) -> int:
        """Number of chunks added since the last commit."""
        return self.num - self._since

    def begin_growth(self, live_rows: int, room: int, at_least: int = 0) -> None:
        """Restart counting after a commit of `live_rows` rows, with room on disk for `room` more chunks. Writes before
        the next commit get at most half of that room; the other half is reserved for that commit."""
        self._since = self.num
        share = self.of_rows(int(self._growth_share * live_rows))
        minimum = MIN_GROWTH * len(self.shards.owned)
        self.allowance = max(minimum, at_least, min(share, room // 2))
        """Number of chunks that may be added, or become due for merging, before an early commit."""
