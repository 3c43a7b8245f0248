"""Pauses of planning: a signal came, or it is time for a commit."""

from __future__ import annotations

import math
import os
import time

from pipeline.cluster.crew import Crew


class Pauses:
    def __init__(self, crew: Crew, every_minutes: float | None) -> None:
        """`every_minutes`: from one commit to the next, if it is for time to tell."""
        self._crew, self._seconds = crew, 60 * every_minutes if every_minutes else math.inf
        self._committed = time.perf_counter()
        self._told: str | None = None
        """The reason to pause that workers were told last."""
        self.signal: str | None = None
        """The signal that asked the run to end at a commit."""

    def stop(self, signal: str) -> None:
        """For a signal handler."""
        self.signal = signal
        # The progress display may be in the middle of a line of its own.
        os.write(2, f"\n{signal}: the planned blocks finish, then a commit; once more: stops at once\n".encode())
        self._crew.interrupt(signal)

    def look(self) -> None:
        """Have workers pause if there is a reason. Not before a block of a stretch is through, or a commit could follow
        a commit for ever."""
        due = time.perf_counter() - self._committed > self._seconds
        why = self.signal or ("time for a commit" if due else None)
        if why and why != self._told:
            self._told = why
            self._crew.pause(why)

    def go_on(self, commits_follow: bool = True) -> None:
        """Have workers plan again, unless a signal came meanwhile: a stretch begins, or a commit was taken."""
        self._committed = time.perf_counter() if commits_follow else math.inf
        self._told = self.signal
        self._crew.pause(self.signal)
