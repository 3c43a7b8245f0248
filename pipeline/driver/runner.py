"""Running the pipeline over blocks, and passing results to the history and to observers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipeline.cluster.crew import Crew
from pipeline.driver.best import BestEpoch
from pipeline.driver.growth import room_for
from pipeline.driver.loop import Pace, Stretch
from pipeline.driver.observers import Observers
from pipeline.driver.pauses import Pauses
from pipeline.machine.signals import discard_output
from pipeline.messages.sizes import format_size_down
from pipeline.monitor.history import History
from pipeline.monitor.observer import ComingStretch, Observer
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal, StageResult
from pipeline.worker.worker import Worker


def as_far_as_known(coming: Iterable[Block], known_examples: int) -> list[Block]:
    """Blocks of `coming`, which follows a stretch, with keys that may be known while its last block is planned."""
    known: list[Block] = []
    for block in coming:
        first = known[0] if known else block
        if block.agenda_batch > first.agenda_batch + known_examples // block.batch_size:
            break
        known.append(block)
    return known


class ComingBlocks:
    """Announces coming blocks to the workers, and reports, only once, if there is no room for all their keys. Does
    nothing if no policy needs them."""

    def __init__(self, setup: Setup) -> None:
        self._storage, self._agenda = setup.workflow.storage, setup.agenda
        self._reported = not self._storage.foresees

    def announce(self, crew: Crew, begin: Block | None, block_batches: int) -> None:
        """Announce the blocks from `begin` on, the first block after the next stretch (None: there is none)."""
        if not self._storage.foresees:
            return
        coming = self._agenda.blocks(block_batches, begin) if begin else []
        crew.each(Worker.announce, as_far_as_known(coming, self._storage.known_examples))

    def shortage(self, crew: Crew) -> str | None:
        """Return a remark, the first time only, if the keys of fewer examples are known than the workflow asks for."""
        if self._reported:
            return None
        least = [examples for examples in crew.each(Worker.least_known) if examples is not None]
        if not least:
            return None
        self._reported = True
        storage = self._storage
        return (
            f"storage.known is {format_size_down(storage.known)}, and the keys of {storage.known_examples:,} coming "
            f"examples take more: at times those of {min(least):,} are known; raise it, or lower storage.known_examples"
        )


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

    def score(self, blocks_of: Callable[[int, int], list[Block]]) -> Refusal | None:
        """Score a pass with the open weights. `blocks_of`: returns its blocks, of at most so many batches, from a batch
        on. Returns the refusal that `make_room` did not resolve, if any."""
        blocks = blocks_of(self.pace.block_batches, 0)
        while blocks and not self._pauses.signal:
            refusal = self.run(blocks)
            if refusal and refusal.what != "pause" and not self.make_room(refusal):
                return refusal
            first = refusal.block.first_batch if refusal else 0
            blocks = blocks_of(self.pace.block_batches, first) if refusal else []
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
