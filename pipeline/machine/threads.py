"""Work on ranges, shared among the threads of one stage. Which thread does which part changes no bit of the result."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count, pairwise

PARTS_PER_THREAD = 4
"""Small parts, taken as threads become free: other stages use the same cores, and one that waits holds up nothing."""
MIN_THREAD_ITEMS = 512
TRAINING_THREADS_PER_OTHER, MAX_OTHERS = 4, 4
"""Beside training on all of two cores a second thread of `dedup` gains nothing, it takes from training. Where cores are
many, or a GPU trains, `read` and `dedup` are through with a block in a fraction of the time."""


def cut_range(size: int, num_parts: int) -> list[slice]:
    """Ranges of equal length; the last may be shorter, or empty."""
    length = -(-size // num_parts)
    return [slice(a, b) for a, b in pairwise(min(n * length, size) for n in range(num_parts + 1))]


def share_of(training_threads: int) -> int:
    """Threads for `read` and for `dedup`, where `train` has so many."""
    return min(max(1, training_threads // TRAINING_THREADS_PER_OTHER), MAX_OTHERS)


class Whole:
    """A stand-in for `Threads` where all work is one call: by the calling thread, or to a GPU, which shares it
    itself."""

    def split(self, size: int, work: Callable[[int, int], None]) -> None:
        if size:
            work(0, size)

    def close(self) -> None:
        """There is nothing to give back."""


class Threads:
    """The calling thread and `num_threads` - 1 more."""

    def __init__(self, num_threads: int, stage: str = "train") -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(max(1, num_threads - 1), thread_name_prefix=stage)

    def split(self, size: int, work: Callable[[int, int], None], minimum: int = MIN_THREAD_ITEMS) -> None:
        """Call work(begin, end) on parts of 0 .. size, and return when all are done. `work` holds no GIL for long.

        `minimum`: the shortest part that is worth handing to another thread.
        """
        part = max(minimum, -(-size // (PARTS_PER_THREAD * self.num_threads)))
        begins = count(0, part)

        def take_parts() -> None:
            while (begin := next(begins)) < size:
                work(begin, min(begin + part, size))

        helpers = min(self.num_threads, -(-size // part)) - 1
        helping = [self._pool.submit(take_parts) for _ in range(helpers)]
        try:
            take_parts()
        finally:
            # Also after an exception: nobody may still be writing when the caller goes on.
            wait(helping)
        for future in helping:
            future.result()

    def close(self) -> None:
        self._pool.shutdown()
