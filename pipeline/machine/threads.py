"""Work on ranges, shared among the threads of one stage, and tasks that each run on one thread. The result does not
depend on which thread does which part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count, islice, pairwise
from typing import TypeVar

T = TypeVar("T")

PARTS_PER_THREAD = 4
"""Number of parts per thread. Parts are small, and idle threads take the next one: other stages use the same cores, and
this way a delayed thread delays no other thread."""
MIN_THREAD_ITEMS = 512
TRAINING_THREADS_PER_OTHER, MAX_OTHERS = 4, 4
"""Ratio and maximum for the threads of `read` and of `dedup`. When training uses both of two cores, a second thread of
`dedup` gains nothing and slows training down. With many cores, or training on a GPU, more threads finish a block in a
fraction of the time."""


def cut_range(size: int, num_parts: int) -> list[slice]:
    """Cut 0 .. size into ranges of equal length; the last ones may be shorter or empty."""
    length = -(-size // num_parts)
    return [slice(a, b) for a, b in pairwise(min(n * length, size) for n in range(num_parts + 1))]


def share_of(training_threads: int) -> int:
    """Number of threads for `read` and for `dedup`, given those of `train`."""
    return min(max(1, training_threads // TRAINING_THREADS_PER_OTHER), MAX_OTHERS)


class Whole:
    """Counterpart of `Threads` that does all work in one call, on the calling thread or on a GPU, which parallelizes
    it."""

    def split(self, size: int, work: Callable[[int, int], None]) -> None:
        if size:
            work(0, size)

    def close(self) -> None:
        """Do nothing: there are no threads to end."""


class Threads:
    """The calling thread and `num_threads` - 1 helper threads."""

    def __init__(self, num_threads: int, stage: str = "train") -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(max(1, num_threads - 1), thread_name_prefix=stage)

    def split(self, size: int, work: Callable[[int, int], None], minimum: int = MIN_THREAD_ITEMS) -> None:
        """Call work(begin, end) on parts of 0 .. size, and return when all parts are done. `work` must release the GIL
        for most of its time.

        `minimum`: minimum size of a part.
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
            # Wait even after an exception: no helper may still be writing when the caller continues.
            wait(helping)
        for future in helping:
            future.result()

    def close(self) -> None:
        self._pool.shutdown()


class TaskThreads:
    """Threads of this process for independent tasks, each on one item."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def each(self, name: str, work: Callable[[T], None], items: Iterable[T], tick_seconds: float) -> Iterator[list[T]]:
        """Call `work` on every item. Takes an item only when a thread is free, which bounds memory. Yields the items
        done since the last yield, at least every `tick_seconds`. `name`: prefix of the threads' names.

        Raises a task's exception after the running tasks have ended. If the generator is closed early, it starts no
        further tasks and waits for the running ones.
        """
        left, flying = iter(items), dict[Future[None], T]()
        pool = ThreadPoolExecutor(self.num_threads, thread_name_prefix=name)
        try:
            while True:
                fresh = islice(left, self.num_threads - len(flying))
                flying |= {pool.submit(work, item): item for item in fresh}
                if not flying:
                    return
                ended, _ = wait(flying, tick_seconds, FIRST_COMPLETED)
                done = [flying.pop(future) for future in ended]
                for future in ended:
                    future.result()
                yield done
        finally:
            pool.shutdown()
