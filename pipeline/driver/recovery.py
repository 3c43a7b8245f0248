"""Recovery from lost workers, as long as there is a commit now and then."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.cluster.crew import WorkerLost
from pipeline.data.agenda import Position
from pipeline.errors import PipelineError

MAX_LOST = 5
"""Times that workers may be lost in a row, with no commit in between, until the run stops."""


class Recovery:
    def __init__(self) -> None:
        self._lost = 0
        self._lost_at: Position | None = None
        """Position of the commit from which workers began anew so many times."""

    def recover(
        self, lost: WorkerLost, at: Position, begin_anew: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        """Begin anew until it works. `at`: position of the last commit. Raises WorkerLost if workers were lost too
        often from there; PipelineError if what is committed cannot be opened."""
        if at != self._lost_at:
            self._lost, self._lost_at = 0, at
        while True:
            self._lost += 1
            if self._lost > MAX_LOST:
                raise lost
            say(f"{lost}: all workers begin anew from the last commit")
            try:
                return begin_anew()
            except ValueError as error:
                raise PipelineError(str(error)) from error
            except WorkerLost as again:
                lost = again
