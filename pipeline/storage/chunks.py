"""How stale the log is, chunk by chunk: kept by `plan` as keys move, without reading a file."""

from __future__ import annotations

import numpy as np

from pipeline.records import I64

LEAST_GROWTH = 8
"""Chunks that may always be added before a commit is brought forward."""


class Chunks:
    """A chunk has R rows, and some of them are stale: a later version of their key exists, or they are padding.

    Positions are given out in order and never again, so a chunk's number is position // R for ever. `present` counts
    the chunks on disk: added ones, less those that a commit has deleted.
    """

    def __init__(self, rows: int, multiple: float = 2.0, growth: float = 1.0) -> None:
        """`multiple`: a commit refers to at most so many rows, stale ones counted, per live row (and one chunk).
        `growth`: rows that may be written between two commits, as a share of the live rows."""
        self.rows = rows
        self._multiple, self._growth_share = multiple, growth
        self._stale_C: I64 = np.full(64, rows, np.int64)
        self.num = 0
        """Chunks given out so far; the next one has this number."""
        self.present = 0
        self.begin_growth(0, 0)

    @property
    def tail(self) -> int:
        """Position of the log that is given out next; always the first of a chunk."""
        return self.num * self.rows

    def of_rows(self, num_rows: int) -> int:
        """Chunks that so many rows fill, the last one perhaps in part."""
        return -(-num_rows // self.rows)

    def add(self, num_rows: int) -> int:
        """Give out positions for so many rows; returns the first. The rest of the last chunk is stale at once."""
        first, added = self.tail, self.of_rows(num_rows)
        while self.num + added > len(self._stale_C):
            self._stale_C = np.concatenate([self._stale_C, np.full_like(self._stale_C, self.rows)])
        self._stale_C[self.num : self.num + added] = 0
        self.num += added
        self.present += added
        if added:
            self._stale_C[self.num - 1] = added * self.rows - num_rows
        return first

    def load(self, tail: int, present: int) -> None:
        """Begin with a log that ends at `tail`, of which so many chunks are on disk; `hold` says what is in them."""
        self.num = tail // self.rows
        self._stale_C = np.full(max(64, 2 * self.num), self.rows, np.int64)
        self.present = present

    def hold(self, chunk: int, num_rows: int) -> None:
        """The chunk has so many rows, and padding."""
        self._stale_C[chunk] = self.rows - num_rows

    def forget(self, at_N: I64) -> None:
        """The rows at these positions have a later version from now on."""
        self._stale_C[: self.num] += self._count(at_N)

    def _count(self, at_N: I64) -> I64:
        return np.bincount(at_N // self.rows, minlength=self.num)

    def live(self) -> I64:
        """Numbers of the chunks that hold a live row, ascending."""
        return np.flatnonzero(self._stale_C[: self.num] < self.rows)

    def stale(self, chunk: int) -> int:
        return int(self._stale_C[chunk])

    @property
    def live_rows(self) -> int:
        return int((self.rows - self._stale_C[: self.num]).sum())

    def sparse(self) -> I64:
        """Numbers of the chunks with live rows, but so few that a commit must not refer to them; fewest first."""
        sparse = np.flatnonzero(self._sparse(self._stale_C[: self.num]))
        return sparse[np.argsort(-self._stale_C[sparse], kind="stable")]

    def sparse_rows(self, stale_at_N: I64) -> int:
        """Live rows in such chunks, once the rows at these positions are stale, too."""
        stale_C = self._stale_C[: self.num] + self._count(stale_at_N)
        return int((self.rows - stale_C)[self._sparse(stale_C)].sum())

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
        self.allowance = max(LEAST_GROWTH, at_least, min(share, room // 2))
        """Chunks that may be added, or be due for merging, until a commit is brought forward."""
