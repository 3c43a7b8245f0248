"""One run, from an opened workflow to its result: pipeline stretches with commits between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.arguments import REPORT
from pipeline.cluster.crew import Crew, WorkerLost
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.agenda import START, Agenda, Position
from pipeline.data.side_files import FOLDER, remove_copies
from pipeline.data.source import Source, changes_in
from pipeline.data.waiting import held_by_guard, with_lists
from pipeline.driver.best import BestEpoch
from pipeline.driver.committer import Committer
from pipeline.driver.loop import CAPS, DueCommit, cap_needed, stretches
from pipeline.driver.observers import MetricsFile, Observers, TerminalDisplay, live_observer
from pipeline.driver.pauses import Pauses, Recovery
from pipeline.driver.result import WORKFLOW, earlier_result, is_tested, write_outputs, write_result
from pipeline.driver.resume import description, known_speed, position_over, read_commits, records_all, remove_leftovers
from pipeline.driver.runner import StretchRunner
from pipeline.errors import FileChanged, PipelineError, error_text
from pipeline.machine.signals import on_signal
from pipeline.monitor.history import History
from pipeline.monitor.observer import CommitFacts, Observer
from pipeline.monitor.progress import Progress
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal
from pipeline.spans.guard import GuardStopped, check_guard
from pipeline.spans.passes import ARRIVAL
from pipeline.spans.waiting import begun_and_done
from pipeline.storage.disk_speed import measure
from pipeline.storage.folder import Folder
from pipeline.worker.worker import Worker

SAME_COMMAND = "the same command"
COMPILING = (
    "compiling the dense model while the first blocks are read: up to half a minute, a few seconds if its cache has it"
)
SHARED = "It was not set aside (metrics.guard_then), since its files also have rows of other spans: write one per file."
CORRECTED_COMMAND = f"once that is corrected, {SAME_COMMAND}"

MakeCrew = Callable[[Folder, Commits], Crew]


class CapTooSmall(PipelineError):
    """The run ended at a block that needs a larger cap."""

    def __init__(self, text: str, kept: str) -> None:
        """`kept`: what is committed, and how to resume."""
        super().__init__(text)
        self.kept = kept


class Driver:
    """Trains one run: runs stretches of blocks on the crew, and commits between them. Call `open` first."""

    def __init__(
        self, setup: Setup, source: Source, folder: Folder, crew: MakeCrew, model: str = "cpu", progress: Any = None
    ) -> None:
        """`crew`: factory of the workers; `model`: model of the device on which each worker trains."""
        self.setup, self._source, self.folder, self._make_crew, self._model = setup, source, folder, crew, model
        self.agenda, workflow = setup.agenda, setup.workflow
        self.best, self.progress = BestEpoch(workflow), progress or Progress(self.agenda.total_examples)
        self.commits = Commits(folder.path, folder.files, workflow.commit.keep, workflow.storage.keep_spans)
        self._description = description(
            workflow, source.identity, model, setup.world, self.agenda.steps_of_epoch, source.side_files
        )
        self._of_spans = source.sides.entry(source.side_files)
        self._read_commits = partial(read_commits, self.commits, source.identity, self._description, setup)
        self._recovery = Recovery()
        self.set_aside = source.set_aside
        self.accepted: Collection[str] = ()
        """Names of spans that the guard does not judge."""
        self.held = self.changed = ""
        """Why a span was set aside, or which file has changed: this ended the session, and the next one goes on."""
        self.lists_again = False
        """True if a changed file may end the session so."""
        self._opened = ExitStack()
        self._opened.callback(source.close)

    @property
    def history(self) -> History:
        return self.runner.history

    def open(self) -> Driver:
        """Open the last commit in the folder, if any, and return this object. Raises ValueError if the commit belongs
        to another workflow. After an exception, everything is closed."""
        workflow, files, direct = self.setup.workflow, self.folder.files, self.setup.workflow.storage.direct
        with ExitStack() as undo:
            undo.callback(self.close)
            files.make_folder(self.commits.folder)
            kept, history, self.warnings = read_or_begin(self)
            speed = self.folder.speed or known_speed(kept, direct) or measure(self.folder.path, direct)
            self.folder = replace(self.folder, speed=speed)
            self.crew = self._make_crew(self.folder, self.commits)
            self._opened.callback(self.crew.close)
            self.live = live_observer(self.folder, self.setup, self._model, self.crew.overlaps)
            self.pauses = Pauses(self.crew, workflow.commit.every_minutes)
            observers = Observers([TerminalDisplay(self.progress), MetricsFile(self.folder), self.live])
            self.runner = StretchRunner(self.setup, self.crew, observers, self.pauses, history)
            try:
                self._begin_at(kept, history)
            except WorkerLost as lost:
                self._recover(lost, print)
            files.replace(self.folder.path / WORKFLOW, [(workflow.model_dump_json(indent=1) + "\n").encode()])
            undo.pop_all()
        return self

    def _begin_at(self, kept: Sequence[Manifest], history: History) -> None:
        """Open the last commit on all workers. Unfinished files of an earlier run are deleted only afterwards, when the
        commit is known to be readable."""
        self.runner.history = history
        at = position_over(kept[-1], self._description) if kept else START
        self.committer = Committer(self.crew, self.commits, kept, history.disk, at)
        self.crew.open(kept)
        self.commits.prune(kept)
        remove_leftovers(self.folder)
        self.crew.each(Worker.tidy)

    def run(self, heeds: bool = True) -> dict[str, Any] | None:
        """Train, evaluate, commit. Returns the result, which is also in `result.json`; None if a signal ended the run
        early, at a commit. `heeds`: handle signals here; otherwise the caller handles them and calls `pauses.ask`.
        Raises PipelineError if a stage or a commit failed, or if the disk or the map is full."""
        try:
            self.history.begin()
            self.begin()
            with on_signal(self.pauses.stop) if heeds else nullcontext(), self.progress:
                begun = [self.what_is_kept()] if self.committer.newest else []
                compiles = [COMPILING] if self.setup.workflow.model.compile and not self._is_over else []
                for line in (*links(self.crew, self.folder.path), *begun, *self.warnings, *compiles):
                    self.runner.say(line)
                result = go_on(self)
            self.runner.observers.notify(Observer.on_end, "finished" if result else "interrupted", "")
        except (OSError, MemoryError, PipelineError) as error:
            self.runner.observers.notify(Observer.on_end, "failed", error_text(error))
            raise ended_by(error, self.what_is_kept) from error
        finally:
            self.close()
        return result

    def close(self) -> None:
        """Release the workers and the data. May be called twice."""
        self._opened.close()

    def begin(self) -> None:
        """Report the position at which training starts to observers."""
        examples = self.agenda.examples_before(self.committer.position)
        facts = newest_facts(self.committer, self.commits)
        self.runner.observers.notify(Observer.on_begin, examples, self.history, facts)

    def _reopen(self) -> None:
        """Open the last commit on all workers again."""
        kept, history, self.warnings = self._read_commits()
        self._begin_at(kept, history)

    def _recover(self, lost: WorkerLost, say: Callable[[str], None]) -> None:
        before = links(self.crew, self.folder.path)

        def restart() -> None:
            self.crew.restart()
            for line in [one for one in links(self.crew, self.folder.path) if one not in before]:
                say(line)
            self._reopen()

        self._recovery.recover(lost, self.committer.position, restart, say)

    @property
    def _is_over(self) -> bool:
        """True if nothing is left to train."""
        return self.committer.position == self.agenda.end or self.best.stops(self.history)

    def what_is_kept(self, command: str = SAME_COMMAND) -> str:
        """Describe the last commit for the user, and what `command` does."""
        return self.committer.what_is_kept(self._is_over, self.best.is_tested, command)

    def train(self) -> Refusal | None:
        """Train the rest of the run. Returns the refusal that neither a smaller pace nor a commit resolved, if any."""
        self.pauses.go_on()
        every_blocks, pace, newest = self.setup.workflow.commit.every_blocks, self.runner.pace, self.committer.newest
        begin = None if self._is_over else self.agenda.block_at(self.committer.position, pace.block_batches)
        if begin is None and self.agenda.end.span is not None and not records_all(newest, self._description):
            self.commit(DueCommit(None))  # The new spans need no training yet: record their files.
        stopped: Refusal | None = None
        for stretch in stretches(self.agenda, begin, pace, every_blocks, self.runner.make_room, self.commit):
            if self.pauses.signal or self.best.stops(self.history) or holds(self, stretch.blocks[0]):
                return None
            self.runner.stretch(stretch)
            stopped = stretch.refusal
        return stopped

    def _finish(self, stopped: Refusal | None) -> dict[str, Any] | None:
        """Write and return the result of the run, after a test if one is due: of the best epoch, or on a test split
        that was added after the run had ended. None if a signal arrived."""
        data = self.agenda.num_examples, self._source.identity
        if not stopped:
            score_arrivals(self)
        epoch = None if stopped else open_best(self) if self.best.is_tested else epoch_without_test(self)
        did_more = self.history.ran or self.committer.began
        result = None if did_more else earlier_result(self.folder.path, self.crew, self.history, *data)
        if result is None:
            if epoch is not None:
                self.test_best(epoch)
                if self.pauses.signal:
                    return None
            workflow, newest, run_dir = self.setup.workflow, self.committer.newest, self.folder.path
            result = write_result(workflow, self.crew, self.history, stopped, newest, self._source.identity, run_dir)
        result = write_outputs(self.folder, self.crew, result)
        if not stopped:
            self.crew.each(Worker.release_reserve)
        return result

    def test_best(self, epoch: int) -> None:
        """Score the test split with the open weights, those of `epoch`. Raises CapTooSmall if a block does not fit."""
        if self.committer.position != self.agenda.end:
            self.runner.say(self.best.why_early(self.history))
            self.runner.observers.notify(Observer.on_early_end, self.agenda.num_examples.get("test", 0))
        self.score(partial(self.agenda.test, epoch), f"the test of epoch {epoch + 1}")

    def score(self, blocks_of: Callable[[int, int], list[Block]], what: str) -> None:
        """Score a pass with the open weights. `blocks_of`: see `StretchRunner.score`."""
        self.pauses.go_on(commits_follow=False)
        while refusal := self.runner.score(blocks_of):
            if not self.runner.must_reopen or self.committer.opened is None:
                raise too_small(self, f"{what} was refused", refusal)
            self.crew.open([self.committer.opened])

    def commit(self, due: DueCommit) -> bool:
        """Take a commit; the pipeline must be drained. Returns True if one before a span was given up."""
        workflow, begin, at = self.setup.workflow, due.begin, self.agenda.position(due.begin)
        keeps_best = workflow.commit.keep_best and (begin is None or (begin.trains and begin.first_batch == 0))
        name = "best" if keeps_best and self.best.is_last(self.history) else None
        given_up = self.committer.commit(
            lambda: {**described(self), **self.history.state(), **position_state(self.agenda, at)}
            | self._of_spans | {"speed": {**asdict(self.folder.measured), "direct": workflow.storage.direct}},
            name=name, at_least=due.at_least, give_up=due.give_up,
        )  # fmt: skip
        for number in given_up:
            self.runner.say(f"storage.disk is almost full: commit {number}, kept for --rewind, is deleted")
        if self._source.side_files:
            remove_copies(self.folder.path / FOLDER, [m.state for m in self.commits.all()], self.folder.files)
        if facts := newest_facts(self.committer, self.commits):
            self.runner.observers.notify(Observer.on_commit, facts)
        if keeps_best and (remark := self.best.undefined(self.history)):
            self.runner.say(remark)
        self.pauses.go_on()
        return bool(given_up)


def go_on(driver: Driver) -> dict[str, Any] | None:
    """Train and finish; if a worker is lost, restart from the last commit. Returns the result, if any. Raises
    CapTooSmall, WorkerLost if workers were lost too often without a commit in between, and FileChanged if training has
    begun with the file, or if a changed file may not end the session."""
    try:
        while True:
            try:
                while (stopped := driver.train()) and driver.runner.must_reopen:
                    driver._reopen()
                    driver.begin()
                result = driver._finish(stopped) if stopped or driver._is_over else None
                if stopped:
                    raise too_small(driver, f"stopped before {name_of(stopped.block)}", stopped)
                return result
            except WorkerLost as lost:
                driver._recover(lost, driver.runner.say)
                driver.begin()
    except FileChanged as changed:
        at = driver.committer.position
        is_begun = at.split == "train" and (at.epoch or at.batch) and at.span in changed.spans
        if is_begun or not (changed.spans and driver.lists_again):
            raise
        driver.changed = str(changed)
        driver.runner.say(f"{changed}; it waits to be trained on, so files are listed again")
        return None


def described(driver: Driver) -> dict[str, Any]:
    """The description of the run, with the files of spans that are done in lists."""
    if calendar := driver._source.calendar:
        data, epochs = driver._description["data"], driver.setup.workflow.schedule.epochs
        _, done = begun_and_done(calendar.num_rows, epochs, driver.history.trained)
        data["train"] = with_lists(data["train"], done, driver.commits.write_list)
    return driver._description


def score_arrivals(driver: Driver) -> None:
    """Score the spans that wait and were not scored so before, with the last weights, and commit the scores."""
    agenda, history = driver.agenda, driver.history
    known = {entry["span"] for entry in history.epochs if entry["split"] == ARRIVAL}
    waiting = agenda.passes.waiting if agenda.passes else []
    new = [leg for leg in waiting if agenda.size(leg) and history.spans[leg.span] not in known]
    if new and history.trained and driver.setup.workflow.metrics.score_arrivals:
        driver.runner.observers.notify(Observer.on_early_end, sum(map(agenda.size, new)))
        for leg in new:
            driver.score(partial(agenda.blocks_of, leg), f"the score of span {history.spans[leg.span]}")
        driver.commit(DueCommit(None))


def open_best(driver: Driver) -> int:
    """Open the weights of the best epoch instead of the last ones. Returns the epoch."""
    opened, epoch, remark = driver.best.commit(driver.commits.all(), driver.history)
    driver.committer.reopen(opened)
    if remark:
        driver.runner.say(remark)
    return epoch


def holds(driver: Driver, block: Block) -> bool:
    """True if the guard objects to the span that begins with this block, which is then set aside by a commit. Raises
    GuardStopped if the workflow does not say so, or if the span shares a file with another one."""
    history, metrics = driver.history, driver.setup.workflow.metrics
    train, label = driver._source.identity["train"], history.spans.get(block.span)
    try:
        if label not in driver.accepted:
            check_guard(block, history.spans, history.epochs, metrics.guard, partial(changes_in, driver._source))
        return False
    except GuardStopped as stopped:
        if metrics.guard_then == "stop" or not (held := held_by_guard(train, block.span or 0)):
            if not records_all(driver.committer.newest, driver._description):
                driver.commit(DueCommit(block))  # What this command says of other spans holds for later ones.
            if metrics.guard_then == "hold":
                raise GuardStopped(f"{stopped} {SHARED}") from stopped
            raise
        described = driver._description["data"]["train"]
        described["held"] = {**described.get("held", {}), label: held.model_dump()}
        driver.commit(DueCommit(block))
        driver.held = str(stopped)
        return True


def ended_by(error: Exception, what_is_kept: Callable[[str], str]) -> PipelineError:
    """Error for a run that failed. `what_is_kept`: see `Driver`."""
    # The cause of the workers' death may not recur.
    command = SAME_COMMAND if isinstance(error, WorkerLost) else CORRECTED_COMMAND
    kept = error.kept if isinstance(error, CapTooSmall) else what_is_kept(command)
    kind = GuardStopped if isinstance(error, GuardStopped) else PipelineError
    return kind(f"{error_text(error)}\n{kept}")


def read_or_begin(driver: Driver) -> tuple[list[Manifest], History, list[str]]:
    """Return what `read_commits` does. If the run has no commits and its workflow has `init_from`, first make its first
    commit; the warnings then start with sentences about what was taken."""
    found = kept, _, _ = driver._read_commits()
    workflow, folder, agenda = driver.setup.workflow, driver.folder, driver.agenda
    if kept or not workflow.init_from:
        return found
    # Imported here, since most runs start from scratch.
    from pipeline.warm_start.first_commit import begin

    driver.folder = replace(folder, speed=folder.speed or measure(folder.path, workflow.storage.direct))
    state = {**driver._description, **position_state(agenda, agenda.position(agenda.block_at(START, 1)))}
    said = begin(driver.setup, driver._source.identity["train"].types, driver.folder, driver.commits, state)
    kept, history, warnings = driver._read_commits()
    return kept, history, [*said, *warnings]


def epoch_without_test(driver: Driver) -> int | None:
    """The last epoch, if the test split was added after it and its weights are still untested; else None."""
    evaluated = {"epochs": driver.history.epochs}
    if is_tested(evaluated, driver.agenda.num_examples, driver._source.identity):
        return None
    return driver.setup.workflow.schedule.epochs - 1


def position_state(agenda: Agenda, at: Position) -> dict[str, Any]:
    """Position of a commit, as part of its state; with spans, also the number of steps before it."""
    if at.span is None:
        return {"position": {"epoch": at.epoch, "split": at.split, "batch": at.batch}}
    return {"position": asdict(at), "steps": agenda.steps_before(at)}


def links(crew: Crew, run_dir: Path) -> list[str]:
    """Return lines with the path of the report and the address of the dashboard."""
    dashboard = [f"dashboard: {crew.dashboard}"] if crew.dashboard else []
    return [f"report: {run_dir / REPORT} (open it in a browser; it follows the run)", *dashboard]


def name_of(block: Block) -> str:
    return f"block {block.number} (epoch {block.epoch + 1}, batch {block.first_batch})"


def too_small(driver: Driver, what: str, refusal: Refusal) -> CapTooSmall:
    """Error for a refused block; names the cap that the block needs."""
    command = f"{SAME_COMMAND} with a larger storage.{CAPS[refusal.cap]}" if refusal.cap in CAPS else CORRECTED_COMMAND
    text = f"{what}: {refusal.message}{cap_needed(refusal, driver.runner.setup, driver.runner.pace.look_ahead)}"
    return CapTooSmall(text, driver.what_is_kept(command))


def newest_facts(committer: Committer, commits: Commits) -> CommitFacts | None:
    """Facts about the newest commit for observers; None if there is no commit."""
    if (newest := committer.newest) is None:
        return None
    log_rows = newest.chunk_rows * len({chunk.number for kept in commits.all() for chunk in kept.chunks})
    return CommitFacts(newest.number, newest.name, newest.live_rows, log_rows, committer.began)
