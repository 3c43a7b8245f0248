"""Recovery from lost workers, with a limit on attempts without a commit in between."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.cluster.crew import WorkerLost
from pipeline.data.agenda import Position
from pipeline.errors import PipelineError

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
            except ValueError as error:
                raise PipelineError(str(error)) from error
            except WorkerLost as again:
                lost = again
