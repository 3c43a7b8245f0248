"""Running the pipeline over blocks, and passing results to the history and to observers."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cluster.crew import Crew
from pipeline.driver.best import BestEpoch
from pipeline.driver.coming import ComingBlocks
from pipeline.driver.growth import room_for
from pipeline.driver.loop import Pace, Stretch
from pipeline.driver.observers import Observers
from pipeline.driver.pauses import Pauses
from pipeline.machine.signals import discard_output
from pipeline.monitor.history import History
from pipeline.monitor.observer import ComingStretch, Observer
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal, StageResult
from pipeline.worker.worker import Worker


class StretchRunner:
    def __init__(self, setup: Setup, crew: Crew, observers: Observers, pauses: Pauses, history: History) -> None:
        self.observers, self.history = observers, history
        self.pace = Pace(setup.fit.look_ahead, setup.fit.block_batches)
        self.setup, self._crew, self._pauses = setup, crew, pauses
        """The setup with the caps that the workers now have."""
        self.must_reopen = False
        """True if the workers must be opened again, with larger slabs, before the block that was refused last."""
        self._best, self._coming = BestEpoch(setup.workflow), ComingBlocks(setup)

    def say(self, text: str) -> None:
        self.observers.notify(Observer.on_line, text)

    def make_room(self, refusal: Refusal) -> bool:
        """Raise a cap or reduce the pace, as `room_for` does. Returns False if neither is possible, or if the workers
        must be opened again."""
        found = room_for(refusal, self.setup, self.pace, self._crew)
        self.must_reopen = found is not None and found.must_reopen
        if found:
            self.setup = found.setup
            self.say(found.remark)
        return found is not None and not self.must_reopen

    def stretch(self, stretch: Stretch) -> None:
        """Run a training stretch."""
        self._crew.each(Worker.set_learning_rates, *self._best.learning_rates(self.history))
        self._coming.announce(self._crew, stretch.following, self.pace.block_batches)
        stretch.refusal = self.run(stretch.blocks)
        if remark := self._coming.shortage(self._crew):
            self.say(remark)

    def run(self, blocks: Sequence[Block]) -> Refusal | None:
        """Run the pipeline over these blocks, up to the first refused one. Returns the refusal, if any."""
        pace, rates = self.pace, self._best.learning_rates(self.history)
        coming = ComingStretch(blocks, pace.block_batches, pace.look_ahead, *rates)
        self.observers.notify(Observer.on_stretch, coming)
        refusal = self._crew.run(blocks, pace.look_ahead, self.watch)
        self.history.times.drained()
        self.observers.notify(Observer.on_drained)
        return refusal

    def test(self, epoch: int) -> Refusal | None:
        """Score the test split with the open weights, which are those of `epoch`. Returns the refusal that
        `make_room` did not resolve, if any."""
        blocks = self.setup.agenda.test(epoch, self.pace.block_batches)
        while blocks and not self._pauses.signal:
            refusal = self.run(blocks)
            if refusal and refusal.what != "pause" and not self.make_room(refusal):
                return refusal
            first = refusal.block.first_batch if refusal else 0
            blocks = self.setup.agenda.test(epoch, self.pace.block_batches, first) if refusal else []
        return None

    def watch(self, done: StageResult) -> None:
        """Process the result of a stage."""
        self.history.add(done)
        try:
            self.observers.notify(Observer.on_stage, done)
        except BrokenPipeError:
            self._pauses.stop(discard_output())
        if done.trained:
            self._pauses.look()
