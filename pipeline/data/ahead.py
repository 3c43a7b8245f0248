"""Row groups of object stores, read before they are needed, so that the wait for a store passes during training."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar

AHEAD = 2
"""Maximum number of row groups that are read, or kept, before they are needed."""
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ReadAhead(Generic[K, T]):
    """Reads in a thread, one after the other; what `read` raises is raised when the result is taken."""

    def __init__(self, read: Callable[[K], T]) -> None:
        self._read = read
        self._thread: ThreadPoolExecutor | None = None
        self._begun: dict[K, Future[T]] = {}

    def take(self, wanted: K, coming: Iterable[K]) -> T:
        """Result of reading `wanted`. Reading the next ones goes on; others that were begun are dropped."""
        self._thread = self._thread or ThreadPoolExecutor(1, "read ahead")
        later = dict.fromkeys(islice((one for one in coming if one != wanted), AHEAD))
        for other in [one for one in self._begun if one != wanted and one not in later]:
            self._begun.pop(other).cancel()
        for one in (wanted, *later):
            if one not in self._begun:
                self._begun[one] = self._thread.submit(self._read, one)
        return self._begun.pop(wanted).result()

    def close(self) -> None:
        """Wait for what is being read. May be called twice."""
        if self._thread:
            self._thread.shutdown(cancel_futures=True)
        self._thread, self._begun = None, {}
