"""The threads of `plan`, which share its work on many keys or slots."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.machine.threads import Threads

MIN_PART = 1 << 14
"""Minimum number of keys or slots that is worth another thread. Handing over a part takes as long as about 5,000."""


class PlanThreads(Threads):
    """The thread of `plan` and `num_threads` - 1 helper threads."""

    def __init__(self, num_threads: int = 1) -> None:
        super().__init__(num_threads, "plan")

    def split(self, size: int, work: Callable[[int, int], None], minimum: int = 0) -> None:
        """As `Threads.split`, but in one call if no other thread would help. `minimum`: by default MIN_PART."""
        minimum = minimum or MIN_PART
        if self.num_threads > 1 and size > minimum:
            super().split(size, work, minimum)
        elif size:
            work(0, size)


ALONE = PlanThreads()
"""One thread, which does everything itself."""
