"""One run, from an opened workflow to its result: stretches of the pipeline, and a commit after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from pipeline.cluster.crew import Crew, WorkerLost
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.source import Source
from pipeline.driver.best import BestEpoch
from pipeline.driver.coming import ComingBlocks
from pipeline.driver.committer import Committer
from pipeline.driver.observers import MetricsFile, TerminalDisplay, live_observer
from pipeline.driver.pace import Pace
from pipeline.driver.pauses import Pauses
from pipeline.driver.recovery import Recovery
from pipeline.driver.result import WORKFLOW, earlier_result, write_outputs, write_result
from pipeline.driver.resume import check_newest, description, known_speed, remove_leftovers
from pipeline.driver.stretches import StretchFile
from pipeline.errors import PipelineError, error_text
from pipeline.machine.signals import discard_output, on_signal
from pipeline.machine.stuck import doing, gave_up
from pipeline.monitor.history import History
from pipeline.monitor.observer import ComingStretch, CommitFacts, Observer, Outcome
from pipeline.monitor.progress import Progress
from pipeline.preflight.larger_caps import Seen, larger_caps
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal, StageResult
from pipeline.storage.disk_speed import measure
from pipeline.storage.folder import Folder
from pipeline.worker.worker import Worker

ATTEMPTS = {"commit": 3, "disk": 2, "window": 1, "map": 1}
"""Maximum number of refusals of the same block, by kind, before the run stops. The commit after a refusal may make room
in the log or on the disk."""

SAME_COMMAND = "the same command"
COMPILING = (
    "compiling the dense model while the first blocks are read: up to half a minute, a few seconds if its cache has it"
)
CORRECTED_COMMAND = f"once that is corrected, {SAME_COMMAND}"

MakeCrew = Callable[[Folder, Commits], Crew]


class CapTooSmall(PipelineError):
    """A block that needs a larger cap ended the run."""

    def __init__(self, text: str, what_stands: str) -> None:
        super().__init__(text)
        self.what_stands = what_stands


class Driver:
    """Gives the crew blocks to train, passes results to observers, and commits after each stretch."""

    def __init__(
        self, setup: Setup, source: Source, folder: Folder, crew: MakeCrew, model: str = "cpu", progress: Any = None
    ) -> None:
        """Open the last commit in `folder`, if there is one. Raises ValueError if it belongs to another workflow.
        After an exception the crew is closed.

        `crew`: factory of the workers; `model`: model of the device that each trains on."""
        self.setup, self._source = setup, source
        self.agenda, workflow = setup.agenda, setup.workflow
        self.best = BestEpoch(workflow)
        self._description = description(workflow, source.identity, model, setup.world, self.agenda.steps_of_epoch)
        self.pace = Pace(setup)
        self.progress = progress or Progress(self.agenda.total_examples)
        self._record = StretchFile(folder, setup)
        self.warnings: list[str] = []
        self._coming = ComingBlocks(setup)
        self._recovery = Recovery()
        self.commits = Commits(folder.path, folder.files, workflow.commit.keep)
        kept = self._read_commits(folder)
        direct = workflow.storage.direct
        speed = folder.speed or known_speed(kept, direct) or measure(folder.path, direct)
        self.folder = replace(folder, speed=speed)
        with ExitStack() as opened:
            self.crew = crew(self.folder, self.commits)
            opened.callback(self.crew.close)
            self.live = live_observer(folder, setup, model, self.crew.overlaps)
            self._observers: list[Observer] = [TerminalDisplay(self.progress), MetricsFile(folder), self.live]
            self.pauses = Pauses(self.crew, workflow.commit.every_minutes)
            try:
                self._open(kept)
            except WorkerLost as lost:
                self._recover(lost, print)
            folder.files.replace(folder.path / WORKFLOW, [(workflow.model_dump_json(indent=1) + "\n").encode()])
            opened.pop_all()

    def _read_commits(self, folder: Folder) -> list[Manifest]:
        """Read the kept commits, check that this workflow may go on from the last one, and load its history."""
        folder.files.make_folder(self.commits.folder)
        kept = self.commits.kept()
        self.history = History({split: of_split.digest for split, of_split in self._source.identity.items()})
        if kept:
            self.warnings = check_newest(kept, self._description, self.agenda, self.setup.workflow)
            self.history.load(kept[-1].state)
        return kept

    def _open(self, kept: Sequence[Manifest]) -> None:
        """Open the last commit on all workers, and then delete the unfinished files of an earlier run: only now is it
        known that the commit can be read."""
        self.committer = Committer(self.crew, self.commits, kept, self.history.disk)
        self.crew.open(kept)
        self.commits.prune(kept)
        remove_leftovers(self.folder)
        self.crew.each(Worker.tidy)
        self._record.opened(self.crew, [manifest.number for manifest in kept], resets=True)

    def run(self) -> dict[str, Any] | None:
        """Train, evaluate, commit. Returns the result, which is also in `result.json`; None if a signal ended the run
        early, at a commit. Raises PipelineError if a stage or a commit failed, or if the disk or the map is full."""
        try:
            self.history.begin()
            self._begin()
            with on_signal(self.pauses.stop), self.progress:
                stands = self.what_stands() if self.committer.newest else None
                compiles = COMPILING if self.setup.workflow.model.compile and not self._is_over else None
                for line in filter(None, (*self._links(), stands, *self.warnings, compiles)):
                    self._say(line)
                result = self._go_on()
            self._tell_end("finished" if result else "interrupted")
        except (OSError, MemoryError, PipelineError) as error:
            what = error.what_stands if isinstance(error, CapTooSmall) else self.what_stands(_command_after(error))
            if not gave_up():
                self._tell_end("failed", error_text(error))
            raise PipelineError(f"{error_text(error)}\n{what}") from error
        finally:
            self.close()
        return result

    def observe(self, *observers: Observer) -> None:
        """Call these observers, too, for each event from here on."""
        self._observers += observers

    def close(self) -> None:
        """Release the workers and the data, unless a thread may still be reading into them. May be called twice."""
        if not gave_up():
            self.crew.close()
            self._source.close()

    def _begin(self) -> None:
        examples, newest = self.agenda.examples_before(self.committer.position), self.committer.newest
        for observer in self._observers:
            observer.on_begin(examples, self.history, facts_of_commit(newest, self.commits) if newest else None)

    def _tell_end(self, how: Outcome, text: str = "") -> None:
        for observer in self._observers:
            observer.on_end(how, text)

    def _go_on(self) -> dict[str, Any] | None:
        """Train and finish; if a worker is lost, restart from the last commit. Returns the result if there is one.
        Raises CapTooSmall, and WorkerLost if workers were lost too often without a commit in between."""
        while True:
            try:
                stopped = self._train()
                result = self._finish(stopped) if stopped or self._is_over else None
                if stopped:
                    raise self._too_small(f"stopped before {_named(stopped.block)}", stopped)
                return result
            except WorkerLost as lost:
                self._recover(lost, self._say)
                self._begin()

    def _recover(self, lost: WorkerLost, say: Callable[[str], None]) -> None:
        links = self._links()

        def begin_anew() -> None:
            self.crew.restart()
            for line in self._links():
                if line not in links:
                    say(line)
            self._open(self._read_commits(self.folder))

        self._recovery.recover(lost, self.committer.position, begin_anew, say)

    def _links(self) -> list[str]:
        """Lines with the addresses of the page and the dashboard."""
        dashboard = [f"dashboard: {self.crew.dashboard}"] if self.crew.dashboard else []
        return [f"page: {self.crew.page or f'pipeline watch {self.folder.path}'}", *dashboard]

    @property
    def _is_over(self) -> bool:
        """True if nothing is left to train."""
        return self.committer.position == self.agenda.end or self.best.stops(self.history)

    def what_stands(self, command: str = SAME_COMMAND) -> str:
        """Describe the last commit for the user, and what `command` does."""
        return self.committer.what_stands(self._is_over, self.best.is_tested, command)

    def _too_small(self, what: str, refusal: Refusal) -> CapTooSmall:
        """Error of a refused block, with caps that are enough."""
        newest, keys, shards = self.committer.newest, 0, self.setup.workflow.workers.num_shards(self.setup.world)
        if newest:
            keys, shards = newest.live_rows, newest.num_shards
        seen = Seen(keys, self.agenda.trained_before(self.committer.position), shards)
        larger = larger_caps(refusal, self.setup, self.pace.look_ahead, seen)
        command = f"{SAME_COMMAND} with {larger.flags}" if larger.flags else CORRECTED_COMMAND
        return CapTooSmall(f"{what}: {larger.text}", self.what_stands(command))

    def _say(self, text: str) -> None:
        for observer in self._observers:
            observer.on_line(text)

    def _train(self) -> Refusal | None:
        """Train the rest of the run. Returns the refusal that neither a smaller pace nor a commit helped."""
        self.pauses.go_on()
        begin = None if self._is_over else self.agenda.block_at(self.committer.position, self.pace.block_batches)
        refused: list[Refusal] = []
        while begin and not self.pauses.signal:
            refusal, following = self._stretch(begin)
            begin = refusal.block if refusal else following
            if refusal and refusal.what == "window" and self._reduce(refusal):
                continue
            refused = [r for r in refused if begin and r.block.number == begin.number]
            if refusal:
                refused.append(refusal)
            self._commit(begin, refused)
            if self.best.stops(self.history):
                return None
            if refusal and [r.what for r in refused].count(refusal.what) >= ATTEMPTS.get(refusal.what, 1 << 30):
                return refusal
        return None

    def _stretch(self, begin: Block) -> tuple[Refusal | None, Block | None]:
        """Run the pipeline from block `begin` to the next commit, or to the first refused block. Returns the refusal,
        if any, and the first block after the stretch."""
        every = self.setup.workflow.commit.every_blocks
        blocks, following = self.agenda.stretch(self.pace.block_batches, begin, every)
        self.crew.each(Worker.set_learning_rates, *self.best.learning_rates(self.history))
        self._coming.announce(self.crew, following, self.pace.block_batches)
        refusal = self._run(blocks)
        if remark := self._coming.shortage(self.crew):
            self._say(remark)
        return refusal, following

    def _run(self, blocks: Sequence[Block]) -> Refusal | None:
        """Run the pipeline over these blocks, or to the first refused one. Returns the refusal, if any."""
        pace = self.pace
        stretch = ComingStretch(blocks, pace.block_batches, pace.look_ahead, *self.best.learning_rates(self.history))
        for observer in self._observers:
            observer.on_stretch(stretch)
        refusal = self.crew.run(blocks, pace.look_ahead, self._watch)
        self.history.times.drained()
        for observer in self._observers:
            observer.on_drained()
        self._record.stretched(self.crew, blocks, pace.block_batches, pace.look_ahead, refusal)
        return refusal

    def _finish(self, stopped: Refusal | None) -> dict[str, Any] | None:
        """Write and return the result of the run, after the test of the best epoch where that is due; None if a signal
        came."""
        epoch = self._open_best() if self.best.is_tested and not stopped else None
        result = None if self.history.ran else earlier_result(self.folder.path, self.crew, self.history)
        if result is None:
            if epoch is not None:
                self._test(epoch)
                if self.pauses.signal:
                    return None
            name, newest, data = self.setup.workflow.name, self.committer.newest, self._source.identity
            result = write_result(name, self.crew, self.history, stopped, newest, data)
        return write_outputs(self.folder, self.crew, result)

    def _open_best(self) -> int:
        """Open the weights of the best epoch in place of the last ones. Returns the epoch."""
        opened, epoch, remark = self.best.commit(self.commits.all(), self.history)
        if opened != self.committer.newest:
            try:
                self.crew.open([opened])
            except ValueError as error:
                raise PipelineError(str(error)) from error
            self._record.opened(self.crew, [opened.number], resets=False)
        if remark:
            self._say(remark)
        return epoch

    def _test(self, epoch: int) -> None:
        """Score the test split with the open weights, those of `epoch`. Raises CapTooSmall if a block does not fit."""
        self.pauses.go_on(commits_follow=False)
        if self.committer.position != self.agenda.end:
            self._say(self.best.why_early(self.history))
            for observer in self._observers:
                observer.on_early_end(self.agenda.num_examples.get("test", 0))
        blocks = self.agenda.test(epoch, self.pace.block_batches)
        while blocks and not self.pauses.signal:
            refusal = self._run(blocks)
            if refusal and refusal.what != "pause" and not (refusal.what == "window" and self._reduce(refusal)):
                raise self._too_small(f"the test of epoch {epoch + 1} was refused", refusal)
            blocks = self.agenda.test(epoch, self.pace.block_batches, refusal.block.first_batch) if refusal else []

    def _commit(self, begin: Block | None, refused: Sequence[Refusal]) -> None:
        """Take a commit after which the run goes on with block `begin` (None: it is over). `refused`: refusals of that
        block, for which this commit must make room."""
        workflow, position = self.setup.workflow, asdict(self.agenda.position(begin))
        epoch_ended = begin is None or (begin.trains and begin.first_batch == 0)
        best = workflow.commit.keep_best and epoch_ended and self.best.is_last(self.history)
        speed = {**asdict(self.folder.measured), "direct": workflow.storage.direct}
        name, at_least = "best" if best else None, max((r.needed + 1 for r in refused if r.what == "commit"), default=0)
        self._record.committing(self.committer.number, name, at_least)
        with doing(f"commit {self.committer.number}"):
            self.committer.commit(
                lambda: {**self._description, **self.history.state(), "position": position, "speed": speed},
                name=name,
                at_least=at_least,
                give_up=any(r.what == "disk" for r in refused),
            )
        self._record.committed(self.commits.numbers())
        assert self.committer.newest, "a commit was taken"
        for observer in self._observers:
            observer.on_commit(facts_of_commit(self.committer.newest, self.commits, self.committer.began))
        if workflow.commit.keep_best and epoch_ended and (remark := self.best.undefined(self.history)):
            self._say(remark)
        self.pauses.go_on()

    def _reduce(self, refusal: Refusal) -> bool:
        """Take a smaller pace; returns False if it is already at its minimum."""
        if remark := self.pace.reduce(refusal):
            self._say(remark)
        return remark is not None

    def _watch(self, done: StageResult) -> None:
        self.history.add(done)
        try:
            for observer in self._observers:
                observer.on_stage(done)
        except BrokenPipeError:
            self.pauses.stop(discard_output())
        if done.trained:
            self.pauses.look()


def facts_of_commit(manifest: Manifest, commits: Commits, began: float = 0.0) -> CommitFacts:
    """Return what observers learn of a commit. `began`: see `CommitFacts`."""
    log_rows = manifest.chunk_rows * len({chunk.number for kept in commits.all() for chunk in kept.chunks})
    return CommitFacts(manifest.number, manifest.name, manifest.live_rows, log_rows, began)


def _command_after(error: Exception) -> str:
    """The command that goes on after an error: one that workers died of may not come again."""
    return SAME_COMMAND if isinstance(error, WorkerLost) else CORRECTED_COMMAND


def _named(block: Block) -> str:
    return f"block {block.number} (epoch {block.epoch + 1}, batch {block.first_batch})"
