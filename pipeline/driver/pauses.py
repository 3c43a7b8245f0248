"""Pauses in planning, after a signal or when a commit is due."""

from __future__ import annotations

import math
import os
import time

from pipeline.cluster.crew import Crew


class Pauses:
    def __init__(self, crew: Crew, every_minutes: float | None) -> None:
        """`every_minutes`: minutes between commits; None: no time-based commits."""
        self._crew, self._seconds = crew, 60 * every_minutes if every_minutes else math.inf
        self._committed = time.perf_counter()
        self._sent: str | None = None
        """Reason to pause most recently sent to the workers."""
        self.signal: str | None = None
        """Name of the signal that asked the run to end at a commit; None if there was none."""

    def stop(self, signal: str) -> None:
        """Ask the run to end at a commit, and print that. Called from a signal handler."""
        # The leading newline ends the progress display's unfinished line.
        os.write(
            2, f"\n{signal}: finishing the planned blocks, then a commit; a second signal stops at once\n".encode()
        )
        self.ask(signal)

    def ask(self, signal: str) -> None:
        """Ask the run to end at a commit."""
        self.signal = signal
        self._crew.interrupt(signal)

    def look(self) -> None:
        """Pause the workers if there is a reason. Call only after a block of the stretch is trained; otherwise commits
        could follow each other without progress."""
        due = time.perf_counter() - self._committed > self._seconds
        why = self.signal or ("time for a commit" if due else None)
        if why and why != self._sent:
            self._sent = why
            self._crew.pause(why)

    def go_on(self, commits_follow: bool = True) -> None:
        """Let the workers resume planning, unless a signal arrived. Call at the start of a stretch and after a commit.
        `commits_follow`: restart the commit timer; False: stop it."""
        self._committed = time.perf_counter() if commits_follow else math.inf
        self._sent = self.signal
        self._crew.pause(self.signal)
