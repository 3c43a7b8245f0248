"""Interruptions of a run: pauses in planning, after a signal or when a commit is due, and lost workers, with a limit on
attempts without a commit in between."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from pipeline.cluster.crew import Crew, WorkerLost
from pipeline.data.agenda import Position
from pipeline.errors import FileChanged, PipelineError

MAX_LOST = 5
"""Maximum number of consecutive worker losses without a commit in between; one more ends the run."""


class Recovery:
    def __init__(self) -> None:
        self._lost = 0
        self._lost_at: Position | None = None
        """Position of the last commit; `_lost` counts the losses since then."""

    def recover(self, lost: WorkerLost, at: Position, restart: Callable[[], None], say: Callable[[str], None]) -> None:
        """Call `restart` until it succeeds. `at`: position of the last commit. Raises WorkerLost if workers were lost
        more than `MAX_LOST` times since that commit, and PipelineError if the commit cannot be opened."""
        if at != self._lost_at:
            self._lost, self._lost_at = 0, at
        while True:
            self._lost += 1
            if self._lost > MAX_LOST:
                raise lost
            say(f"{lost}: all workers restart from the last commit")
            try:
                return restart()
            except FileChanged:
                raise
            except ValueError as error:
                raise PipelineError(str(error)) from error
            except WorkerLost as again:
                lost = again


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
