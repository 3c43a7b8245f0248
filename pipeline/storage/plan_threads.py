"""Threads of `plan`, which share its work on many keys or slots."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.machine.threads import Threads

MIN_PART = 1 << 14
"""Minimum number of keys or slots per additional thread. Handing over a part costs as much as about 5,000 of them."""


class PlanThreads(Threads):
    """The thread of `plan` and `num_threads` - 1 helper threads."""

    def __init__(self, num_threads: int = 1) -> None:
        super().__init__(num_threads, "plan")

    def split(self, size: int, work: Callable[[int, int], None], minimum: int = 0) -> None:
        """Like `Threads.split`, but in one call if no other thread would help. `minimum` defaults to MIN_PART."""
        minimum = minimum or MIN_PART
        if self.num_threads > 1 and size > minimum:
            super().split(size, work, minimum)
        elif size:
            work(0, size)


ALONE = PlanThreads()
"""A single thread, without helpers."""
