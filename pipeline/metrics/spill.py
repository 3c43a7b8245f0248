"""External sort of any number of 64-bit entries: entries beyond the memory bound are spilled to disk as sorted runs.

An entry has C words; the words of all entries are in C arrays. Entries are sorted by the first word; the second breaks
ties.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.records import U64

MERGED = 1 << 18
"""Number of entries that are merged together. Their temporary arrays take about 25 MiB."""


class SortedSpill:
    """Sorted entries. Takes 8 C bytes per entry for up to `bound` entries, and twice that during sorting if C > 1.

    Files are in `folder`, which is created when needed. A file is unlinked as soon as it is mapped, so a killed run
    leaves none behind.
    """

    def __init__(self, folder: Path, bound: int, num_words: int = 1) -> None:
        assert bound >= 1
        self._folder = folder
        self._bound = bound
        self._words_CN: U64 = np.empty((num_words, 0), np.uint64)
        self.count = 0
        """Number of entries in memory."""
        self.runs: list[U64] = []

    @property
    def room(self) -> int:
        """Number of entries for which memory is allocated."""
        return self._words_CN.shape[1]

    def add(self, *words: U64) -> None:
        """Add copies of entries: C arrays [B]."""
        taken, size = 0, len(words[0])
        while taken < size:
            if self.count == self._bound:
                self._spill()
            self._reserve(size - taken)
            more = min(size - taken, self._bound - self.count)
            for kept_N, word_B in zip(self._words_CN, words, strict=True):
                kept_N[self.count : self.count + more] = word_B[taken : taken + more]
            self.count += more
            taken += more

    def add_run(self, pieces: Iterable[U64]) -> None:
        """Add sorted entries, [C, n] at a time, as a run on disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix="auc-", suffix=".run") as file:
            for words_CN in pieces:
                file.write(np.ascontiguousarray(words_CN.T).tobytes())
            file.flush()
            if file.tell():
                entries_NC = np.memmap(file.name, np.uint64, mode="r").reshape(-1, len(self._words_CN))
                self.runs.append(np.asarray(entries_NC.T))

    def piece(self, number: int) -> bytes:
        """Return the entries of piece `number`, in no particular order, with the words of each entry together; b""
        after the last piece. The entries are kept."""
        for run_CN in [*self.runs, self._words_CN[:, : self.count]]:
            pieces = -(-run_CN.shape[1] // MERGED)
            if number < pieces:
                return run_CN[:, number * MERGED : (number + 1) * MERGED].T.tobytes()
            number -= pieces
        return b""

    def add_piece(self, words: U64) -> None:
        """Add entries, with the words of each entry together."""
        self.add(*words.reshape(-1, len(self._words_CN)).T)

    def take(self) -> Iterator[U64]:
        """Iterate over all entries since the last call, sorted, [C, n] at a time. Consume it before the next `add`."""
        runs = [*self.runs, self._sorted()]
        self.runs = []
        self.count = 0
        return merge_runs(runs, min(MERGED, self._bound))

    def _sorted(self) -> U64:
        words_CN = self._words_CN[:, : self.count]
        if len(words_CN) == 1:
            words_CN.sort(axis=1)
            return words_CN
        order_N = np.lexsort(words_CN[::-1])
        for word_N in words_CN:
            word_N[:] = word_N[order_N]
        return words_CN

    def _reserve(self, more: int) -> None:
        """Grow the memory, by doubling, to make room for `more` entries, up to `bound` in total."""
        needed = min(self._bound, self.count + more)
        if needed > self.room:
            grown = np.empty((len(self._words_CN), min(self._bound, max(needed, 2 * self.room))), np.uint64)
            grown[:, : self.count] = self._words_CN[:, : self.count]
            self._words_CN = grown

    def _spill(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix="auc-", suffix=".npy") as file:
            np.save(file.name, self._sorted())
            self.runs.append(np.asarray(np.load(file.name, mmap_mode="r")))
        self.count = 0


def merge_runs(runs: Sequence[U64], chunk: int) -> Iterator[U64]:
    """Iterate over all entries of the sorted `runs` [C, n] in ascending order, about `chunk` at a time, as copies."""
    window = max(1, chunk // max(1, len(runs)))
    rest = [run for run in runs if run.shape[1]]
    while rest:
        # Entries after a window are at least as large as its last entry, so none after the windows is below `cut`.
        cut = min(tuple(run[:, :window][:, -1]) for run in rest)
        counts = [_num_up_to(run[:, :window], cut) for run in rest]
        together = np.concatenate([run[:, :n] for run, n in zip(rest, counts, strict=True)], axis=1)
        if len(rest) > 1:
            together = np.sort(together) if len(together) == 1 else together[:, np.lexsort(together[::-1])]
        yield together
        rest = [run[:, n:] for run, n in zip(rest, counts, strict=True) if n < run.shape[1]]


def _num_up_to(run_CN: U64, entry: tuple[np.uint64, ...]) -> int:
    """Number of entries of a sorted run that are at most `entry`."""
    begin, end = 0, run_CN.shape[1]
    for word_N, value in zip(run_CN, entry, strict=True):
        equal_N = word_N[begin:end]
        after = begin + int(np.searchsorted(equal_N, value, side="right"))
        begin, end = begin + int(np.searchsorted(equal_N, value)), after
    return end
