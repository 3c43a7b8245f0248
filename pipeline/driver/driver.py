"""One run, from an opened workflow to its result: stretches of the pipeline, and a commit after each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.cluster.dask_crew import DaskCrew
from pipeline.cluster.local import local_client
from pipeline.cluster.pool import Pool
from pipeline.cluster.team import Alone, Crew, Team, WorkerLost, replicas_for
from pipeline.commits.manifest import RESERVE_NAME, Commits, Manifest
from pipeline.commits.run_state import naming, newest_state
from pipeline.data.agenda import Position, agenda_of
from pipeline.data.identity import as_json
from pipeline.data.source import Source
from pipeline.device.device import RAM, Device
from pipeline.device.gpu import choose
from pipeline.driver.committer import Committer
from pipeline.driver.result import LEFT, WORKFLOW, earlier_result, leave, write_metrics, write_result
from pipeline.driver.resume import check, description
from pipeline.errors import PipelineError, told
from pipeline.machine.signals import on_signal
from pipeline.monitor.history import History
from pipeline.monitor.progress import Progress
from pipeline.monitor.report import evaluated
from pipeline.optim.plateau import Verdict, judge
from pipeline.preflight.explain import no_room
from pipeline.preflight.first_window import reductions
from pipeline.preflight.sizes import DoesNotFit, Fit
from pipeline.records import Block, Done, Refusal
from pipeline.storage.disk_speed import DiskSpeed, measure
from pipeline.storage.files import Files
from pipeline.storage.reader import allow_many_files
from pipeline.storage.shards import Shards
from pipeline.training.learner import least_last
from pipeline.worker.resources import Resources
from pipeline.worker.worker import Opening, Worker
from pipeline.workflow import Workflow

START = Position(0, "train", 0)
ATTEMPTS = {"commit": 3, "disk": 2, "window": 1, "map": 1}
"""How often the same block may be refused before the run stops: a commit makes room, in the log or on the disk."""
MOST_LOST = 5
"""Times that workers may be lost in a row, with no commit in between, until the run stops."""


MakeCrew = Callable[["Driver", DiskSpeed], Crew]


class Driver:
    """Hands block numbers to the crew, keeps what comes back, and commits between stretches."""

    def __init__(
        self, workflow: Workflow, source: Source, fit: Fit, run_dir: Path, client: Any = None, progress: Any = None,
        files: Files | None = None, speed: DiskSpeed | None = None, device: Device | None = None,
        crew: MakeCrew | None = None, world: int = 1, model: str = "cpu",
    ) -> None:  # fmt: skip
        """Goes on from the last commit in `run_dir`, if there is one; ValueError if it is one of another workflow.

        `client`: a Dask client whose only worker lives in this process; without one the run is serial. `files`: how
        anything gets onto the disk. `speed`: the disk's; measured if not given and not known. `device`: by default the
        one that the workflow asks for. `crew`: makes `world` workers that do not live in this process, and train on
        devices of this `model`.
        """
        self.workflow, self.run_dir = workflow, run_dir
        self.files = files or Files(cached=not workflow.storage.direct)
        self._plateau = workflow.schedule.plateau
        self.agenda = agenda_of(workflow, source.num_examples, least_last(workflow, world))
        self._digests = {split: of_split.digest for split, of_split in source.identity.items()}
        self.history = History(self._digests)
        self._device = device or (RAM if crew else choose(workflow.device))
        model = model if crew else self._device.model
        self._description = description(workflow, source.identity, model, world, self.agenda.steps_of_epoch)
        self._look_ahead, self._block_batches = fit.look_ahead, fit.block_batches
        self._progress = progress or Progress(self.agenda.total_examples)
        self._warnings: list[str] = []
        self._signal: str | None = None
        self._paused: str | None = None
        """Why workers plan no further block, as far as they were told."""
        self._lost = 0
        self._lost_at: Position | None = None
        """What the commit held from which workers began anew so many times."""
        self.commits = Commits(run_dir, self.files, workflow.commit.keep)
        kept = self._read_commits()
        self._speed = speed or self._known_speed(kept) or measure(run_dir, workflow.storage.direct)
        self._source, self.fit = source, fit
        self.crew = crew(self, self._speed) if crew else Alone(self._open_worker, client)
        self._committer = self._committer_after(kept)
        try:
            self._open(kept)
        except WorkerLost as lost:
            self._recover(lost, print)
        self.files.replace(run_dir / WORKFLOW, [(workflow.model_dump_json(indent=1) + "\n").encode()])

    @property
    def resources(self) -> Resources:
        """Those of the one worker in this process."""
        assert isinstance(self.crew, Alone)
        return self.crew.resources

    def _read_commits(self) -> list[Manifest]:
        """The kept commits, after a look at whether this workflow may go on from the last one."""
        self.files.make_folder(self.commits.folder)
        kept = self.commits.kept()
        self.history = History(self._digests)
        if kept:
            newest = newest_state(kept)
            self._warnings = check(kept[-1].state, self._description, newest.at, self.workflow.model.kind)
            with naming(kept[-1]):
                newest.check_trained(self.agenda.trained_before(newest.at))
            self.history.load(kept[-1].state)
        return kept

    def _open(self, kept: Sequence[Manifest]) -> None:
        """Have the last commit open on all workers. What was being written when an earlier run ended goes then, since
        that commit is known to be readable."""
        self.crew.open(kept)
        for name in LEFT:
            if os.path.lexists(partial := self.run_dir / f"{name}.partial"):
                self.files.remove(partial)
        self.commits.prune(kept)
        # Of another number of workers, too.
        for path in self.run_dir.iterdir():
            if RESERVE_NAME.fullmatch(path.name) and not path.is_dir():
                self.files.remove(path)
        self.crew.each("tidy")
        self._committer = self._committer_after(kept)

    def _committer_after(self, kept: Sequence[Manifest]) -> Committer:
        return Committer(self.crew, self.commits, kept[-1] if kept else None, self.history.disk)

    def _open_worker(self, kept: Sequence[Manifest]) -> Worker:
        """The one worker, in this process."""
        fit, (dense,) = self.fit, replicas_for(1, self.commits, kept)
        num_shards = kept[-1].num_shards if kept else self.workflow.workers.num_shards(1)
        shards = Shards(num_shards, tuple(range(num_shards)))
        opening = Opening(fit.sizes, self.run_dir, self._speed, tuple(kept), dense, shards)
        try:
            return Worker(self.workflow, opening, self._source, self._device, self.files)
        except MemoryError as error:
            raise DoesNotFit(no_room(error, fit.sizes, fit.look_ahead, self._device)) from error

    def _known_speed(self, kept: Sequence[Manifest]) -> DiskSpeed | None:
        known = dict(kept[-1].state["speed"]) if kept else {"direct": None}
        return DiskSpeed(**known) if known.pop("direct") == self.workflow.storage.direct else None

    def run(self) -> dict[str, Any] | None:
        """Train, evaluate, commit. Returns the result, which is also in `result.json`; None if a signal ended the run
        early, at a commit. PipelineError: a stage or a commit failed, or the disk or the map is full."""
        try:
            self.history.begin()
            self._examples = self.agenda.examples_before(self._position)
            self._progress.begin_at(self._examples)
            with on_signal(self._stop), self._progress:
                self._say_how_it_begins()
                stopped, result = self._go_on()
        except (OSError, MemoryError, PipelineError) as error:
            raise PipelineError(f"{told(error)}\n{self.what_stands()}") from error
        finally:
            self.crew.close()
            self._source.close()
        if stopped:
            raise PipelineError(
                f"stopped before block {stopped.block.number} (epoch {stopped.block.epoch + 1}, batch "
                f"{stopped.block.first_batch}): {stopped.message}\n{self.what_stands()}"
            )
        return result

    def _go_on(self) -> tuple[Refusal | None, dict[str, Any] | None]:
        """Train and finish, beginning again from the last commit where a worker was lost: the refusal that nothing
        mends, and the result. WorkerLost: it happened too often without a commit in between."""
        while True:
            try:
                stopped = self._train()
                return stopped, self._finish(stopped) if stopped or self._is_over else None
            except WorkerLost as lost:
                self._recover(lost, self._progress.line)

    def _recover(self, lost: WorkerLost, say: Callable[[str], None]) -> None:
        if self._position != self._lost_at:
            self._lost, self._lost_at = 0, self._position
        while True:
            self._lost += 1
            if self._lost > MOST_LOST:
                raise lost
            say(f"{lost}: all workers begin anew from the last commit")
            try:
                self.crew.restart()
                self._open(self._read_commits())
                break
            except ValueError as error:
                raise PipelineError(str(error)) from error
            except WorkerLost as again:
                lost = again
        self._examples = self.agenda.examples_before(self._position)
        self._progress.begin_at(self._examples)

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self._position == self.agenda.end or self._verdict().stops(self._plateau)

    def _verdict(self) -> Verdict:
        metric = self._plateau.metric if self._plateau else "auc"
        return judge(metric, self.history.validated(metric))

    @property
    def _position(self) -> Position:
        newest = self._committer.newest
        return Position(**newest.state["position"]) if newest else START

    def what_stands(self) -> str:
        """What the last commit holds, in words."""
        newest = self._committer.newest
        if newest is None:
            return "nothing is committed yet: the same command begins anew"
        at = self._position
        if self._is_over:
            if self._plateau:
                return f"commit {newest.number} holds all of the training: the same command tests the best epoch"
            return (
                f"commit {newest.number} holds all of the training: the same command writes the result where it is "
                "missing; more epochs go on from it, --fresh anew"
            )
        return (
            f"commit {newest.number} stands, up to epoch {at.epoch + 1}, {at.split}, batch {at.batch}: "
            "the same command goes on from there"
        )

    def _say_how_it_begins(self) -> None:
        if self.crew.dashboard:
            self._progress.line(f"dashboard: {self.crew.dashboard}")
        if self._committer.newest:
            self._progress.line(self.what_stands())
        for warning in self._warnings:
            self._progress.line(warning)

    def _stop(self, signal: str) -> None:
        self._signal = signal
        # In a signal handler the progress display may be in the middle of a line of its own.
        os.write(2, f"\n{signal}: the planned blocks finish, then a commit; once more: stops at once\n".encode())
        if isinstance(self.crew, Alone):
            self.crew.pause(signal)

    def _train(self) -> Refusal | None:
        """All that is left of the run; the refusal that nothing mends, if there was one."""
        self._committed = time.perf_counter()
        begin = None if self._is_over else self.agenda.block_at(self._position, self._block_batches)
        refused: list[Refusal] = []
        while begin and not self._signal:
            refusal, following = self._stretch(begin)
            begin = refusal.block if refusal else following
            if refusal and refusal.what == "window" and self._reduce(refusal):
                continue
            refused = [r for r in refused if begin and r.block.number == begin.number]
            if refusal:
                refused.append(refusal)
            self._commit(begin, refused)
            if self._verdict().stops(self._plateau):
                return None
            if refusal and [r.what for r in refused].count(refusal.what) >= ATTEMPTS.get(refusal.what, 1 << 30):
                return refusal
        return None

    def _stretch(self, begin: Block) -> tuple[Refusal | None, Block | None]:
        """Run the pipeline from block `begin` to the next commit, or to the block that `plan` refuses."""
        blocks, following = self.agenda.stretch(self._block_batches, begin, self.workflow.commit.every_blocks)
        verdict, optimizer = self._verdict(), self.workflow.optimizer
        rates = (verdict.lr(lr, self._plateau) for lr in (optimizer.rows.lr, optimizer.dense.lr))
        self.crew.each("set_learning_rates", *rates)
        return self.crew.run(blocks, self._look_ahead, self._watch), following

    def _finish(self, stopped: Refusal | None) -> dict[str, Any] | None:
        """The result of the run, or, where the test is of the best epoch, of that commit; None: a signal came."""
        epoch = self._open_best() if self._plateau and not stopped else None
        result = None if self.history.spans else earlier_result(self.run_dir, self.crew, self.history)
        if result is None:
            if epoch is not None:
                self._test(epoch)
                if self._signal:
                    return None
            newest = self._committer.newest
            # What was evaluated in other sessions is of the data of then.
            old = newest.state["data"] if newest and not self.history.spans else None
            data, number = old or as_json(self._source.identity), newest.number if newest else None
            result = write_result(self.workflow.name, self.crew, self.history, stopped, number, data)
        return leave(self.run_dir, self.files, self.crew, result)

    def _open_best(self) -> int:
        """Have the weights of the best epoch open, in place of those that were trained last; the epoch they are of."""
        newest = self._committer.newest
        assert newest
        named = [manifest for manifest in self.commits.kept() if manifest.name == "best"]
        opened = named[-1] if named else newest
        if opened != newest:
            try:
                self.crew.open([opened])
            except ValueError as error:
                raise PipelineError(str(error)) from error
        epoch, best = Position(**opened.state["position"]).epoch - 1, self._verdict().best
        if best is not None and epoch != best:
            self._progress.line(
                f"the best epoch is {best + 1}, and its commit is not there any more, or never was: epoch {epoch + 1} "
                "is tested instead"
            )
        return epoch

    def _test(self, epoch: int) -> None:
        """Score the test split with the weights that are open, those of this epoch. PipelineError: there is no room."""
        # There is nothing to commit any more.
        self._committed = math.inf
        self._go_on_planning()
        blocks = self.agenda.test(epoch, self._block_batches)
        while blocks and not self._signal:
            refusal = self.crew.run(blocks, self._look_ahead, self._watch)
            if refusal and refusal.what != "pause" and not (refusal.what == "window" and self._reduce(refusal)):
                raise PipelineError(f"the test of epoch {epoch + 1} was refused: {refusal.message}")
            blocks = self.agenda.test(epoch, self._block_batches, refusal.block.first_batch) if refusal else []

    def _commit(self, begin: Block | None, refused: Sequence[Refusal]) -> None:
        """Commit what is trained, to go on with block `begin`; `refused`: what was refused of it, so that this commit
        must make room."""
        position = self.agenda.position(begin)
        epoch_ended = begin is None or (begin.trains and begin.first_batch == 0)
        best = self.workflow.commit.keep_best and epoch_ended and self._last_is_best()

        def state() -> dict[str, Any]:
            speed = {**asdict(self._speed), "direct": self.workflow.storage.direct}
            return {**self._description, **self.history.state(), "position": asdict(position), "speed": speed}

        self._committer.commit(
            state,
            name="best" if best else None,
            at_least=max((r.needed + 1 for r in refused if r.what == "commit"), default=0),
            give_up=any(r.what == "disk" for r in refused),
        )
        self._committed = time.perf_counter()
        self._go_on_planning()

    def _last_is_best(self) -> bool:
        verdict = self._verdict()
        return verdict.best is not None and verdict.in_a_row == 0

    def _reduce(self, refusal: Refusal) -> bool:
        """Take a smaller look-ahead, then smaller blocks; False if both are at their least."""
        batches = self._block_batches if self._look_ahead else min(self._block_batches, refusal.block.num_batches)
        smaller = reductions(self._look_ahead, batches)[1:]
        if not smaller:
            return False
        self._look_ahead, self._block_batches = smaller[0]
        self._progress.line(
            f"look-ahead {self._look_ahead}, blocks of {self._block_batches} batches from here: {refusal.message}"
        )
        return True

    def _go_on_planning(self) -> None:
        """Unless a signal came meanwhile."""
        self._paused = self._signal
        self.crew.pause(self._signal)

    def _pause(self, why: str) -> None:
        """Have workers plan no further block, if they were not told so yet."""
        if self._paused != why:
            self._paused = why
            self.crew.pause(why)

    def _watch(self, done: Done) -> None:
        self.history.add(done)
        if done.trained is None:
            return
        # Not before a block of this stretch is through, or a commit could follow a commit for ever.
        minutes = self.workflow.commit.every_minutes
        if self._signal or (minutes and time.perf_counter() - self._committed > 60 * minutes):
            self._pause(self._signal or "time for a commit")
        self._examples += done.trained.block.num_examples
        self._progress.update(self._examples, done.trained.loss, self.history.ready)
        if done.trained.metrics:
            self._progress.line(evaluated(self.history.epochs[-1]))
            write_metrics(self.run_dir, self.files, self.history)


@contextmanager
def open_run(
    workflow: Workflow, source: Source, fit: Fit, run_dir: Path, serial: bool = False, device: Device | None = None
) -> Iterator[Driver]:
    """A driver for a directory that is empty or holds a run, with Dask in this process unless `serial`."""
    allow_many_files()
    with nullcontext() if serial else local_client() as client:
        yield Driver(workflow, source, fit, run_dir, client, device=device)


@contextmanager
def open_crew(workflow: Workflow, source: Source, fit: Fit, run_dir: Path, team: Team) -> Iterator[Driver]:
    """A driver whose workers are processes of a cluster. NoWorkers: too few came. WorkerLost: they die, each time.
    PipelineError: Dask does not answer."""

    def crew(driver: Driver, speed: DiskSpeed) -> Crew:
        return DaskCrew(pool, workflow, team, fit.sizes, run_dir.absolute(), driver.commits, speed, source.identity)

    with closing(Pool(team)) as pool:
        models = pool.devices(workflow.device)
        if len(models) > 1:
            print(f"workers train on {', '.join(models)}: other bits come of it if these are dealt to them otherwise")
        yield Driver(workflow, source, fit, run_dir, crew=crew, world=team.world, model=", ".join(models))
