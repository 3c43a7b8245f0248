"""One run, from an opened workflow to its result: stretches of the pipeline, and a commit after each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.agenda import Agenda, Position
from pipeline.cluster import DaskExecutor, dashboard_link, local_client
from pipeline.committer import Committer
from pipeline.data.source import Source
from pipeline.device import Device
from pipeline.gpu import choose
from pipeline.memory import keep_freed_memory
from pipeline.monitor.history import History
from pipeline.monitor.progress import Progress
from pipeline.monitor.report import evaluated
from pipeline.optim.plateau import Verdict, judge
from pipeline.records import Block, Done, Refusal
from pipeline.rehearse import reductions
from pipeline.resources import PipelineError, Resources
from pipeline.result import earlier_result, write_metrics, write_result
from pipeline.resume import check, description
from pipeline.schedule import Executor, Schedule, SerialExecutor
from pipeline.stop import on_signal
from pipeline.storage.commits import Commits, Manifest
from pipeline.storage.disk_speed import DiskSpeed, measure
from pipeline.storage.explain import no_room
from pipeline.storage.files import Files
from pipeline.storage.reader import allow_many_files
from pipeline.storage.reopen import clean
from pipeline.storage.shards import ONE_SHARD, Shards
from pipeline.storage.sizes import DoesNotFit, Fit
from pipeline.workflow import Workflow

START = Position(0, "train", 0)
ATTEMPTS = {"commit": 3, "disk": 2, "window": 1, "map": 1}
"""How often the same block may be refused before the run stops: a commit makes room, in the log or on the disk."""


class Driver:
    """Hands block numbers to the executor, keeps what comes back, and commits between stretches."""

    def __init__(
        self, workflow: Workflow, source: Source, fit: Fit, run_dir: Path, client: Any = None, progress: Any = None,
        files: Files | None = None, speed: DiskSpeed | None = None, device: Device | None = None,
        shards: Shards = ONE_SHARD,
    ) -> None:  # fmt: skip
        """Goes on from the last commit in `run_dir`, if there is one; ValueError if it is one of another workflow.

        `client`: a Dask client whose only worker lives in this process; without one the run is serial. `files`: how
        anything gets onto the disk. `speed`: the disk's; measured if not given and not known. `device`: by default the
        one that the workflow asks for. `shards`: of the table, all of which this process owns.
        """
        self.workflow, self.run_dir = workflow, run_dir
        self.files = files or Files(cached=not workflow.storage.direct)
        self._plateau = workflow.schedule.plateau
        self.agenda = Agenda(
            source.num_examples, workflow.schedule.batch_size, workflow.schedule.epochs, self._plateau is not None
        )
        self.history = History()
        device = device or choose(workflow.device)
        self._description = description(workflow, source.num_examples, device.model)
        self._look_ahead, self._block_batches = fit.look_ahead, fit.block_batches
        self._client = client
        self._progress = progress or Progress(self.agenda.total_examples)
        self._warnings: list[str] = []
        self._signal: str | None = None
        commits = self._commits = Commits(run_dir, self.files, workflow.commit.keep)
        kept = self._open(commits)
        self._speed = speed or self._known_speed(kept) or measure(run_dir, workflow.storage.direct)
        self._source, self._fit, self._device, self._shards = source, fit, device, shards
        self.resources = self._open_resources(kept)
        self._tidy(commits, kept)
        self._committer = Committer(self.resources, commits, kept[-1] if kept else None, self.history.disk)
        self.files.replace(run_dir / "workflow.json", [(workflow.model_dump_json(indent=1) + "\n").encode()])

    def _open(self, commits: Commits) -> list[Manifest]:
        """The kept commits, after a look at whether this workflow may go on from the last one."""
        self.files.make_folder(commits.folder)
        kept = commits.kept()
        if kept:
            state = kept[-1].state
            self._warnings = check(state, self._description, Position(**state["position"]))
            self.history.load(state)
        return kept

    def _open_resources(self, kept: Sequence[Manifest]) -> Resources:
        fit = self._fit
        try:
            return Resources(
                self.workflow, self._source, fit.sizes, self.run_dir, self._commits, kept, self._speed, self._device,
                self._shards,
            )  # fmt: skip
        except MemoryError as error:
            raise DoesNotFit(no_room(error, fit.sizes, fit.look_ahead, self._device)) from error

    def _tidy(self, commits: Commits, kept: Sequence[Manifest]) -> None:
        """What was being written when an earlier run ended goes, now that the last commit is known to be readable."""
        for partial in self.run_dir.glob("*.partial"):
            self.files.remove(partial)
        commits.release()
        commits.prune(kept)
        clean(self.run_dir / "table.zarr", kept, self.files, self._shards)

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
                stopped = self._train()
                result = self._finish(stopped) if stopped or self._is_over else None
        except (OSError, PipelineError) as error:
            raise PipelineError(f"{error}\n{self.what_stands()}") from error
        finally:
            self.resources.close()
            self._source.close()
        if stopped:
            raise PipelineError(
                f"stopped before block {stopped.block.number} (epoch {stopped.block.epoch + 1}, batch "
                f"{stopped.block.first_batch}): {stopped.message}\n{self.what_stands()}"
            )
        return result

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
            return f"commit {newest.number} holds the whole run; more epochs go on from it, --fresh anew"
        return (
            f"commit {newest.number} stands, up to epoch {at.epoch + 1}, {at.split}, batch {at.batch}: "
            "the same command goes on from there"
        )

    def _say_how_it_begins(self) -> None:
        if self._client:
            self._progress.line(f"dashboard: {dashboard_link(self._client)}")
        if self._committer.newest:
            self._progress.line(self.what_stands())
        for warning in self._warnings:
            self._progress.line(f"other than when it began, so that other bits will come of it: {warning}")

    def _stop(self, signal: str) -> None:
        self._signal = self.resources.pause = signal
        # In a signal handler the progress display may be in the middle of a line of its own.
        os.write(2, f"\n{signal}: the planned blocks finish, then a commit; once more: stops at once\n".encode())

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
        self._set_learning_rates()
        return self._run_blocks(blocks), following

    def _run_blocks(self, blocks: Sequence[Block]) -> Refusal | None:
        self.resources.start(blocks, self._look_ahead)
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        with self._executor() as executor:
            schedule = Schedule(numbers, self._look_ahead, self.resources.stages, executor, self._watch)
            refusal = schedule.run()
        for done in self.resources.drain():
            self._watch(done)
        return refusal

    def _set_learning_rates(self) -> None:
        verdict, learner, optimizer = self._verdict(), self.resources.learner, self.workflow.optimizer
        learner.rows.lr = verdict.lr(optimizer.rows.lr, self._plateau)
        learner.dense.lr = verdict.lr(optimizer.dense.lr, self._plateau)

    def _finish(self, stopped: Refusal | None) -> dict[str, Any] | None:
        """The result of the run, or, where the test is of the best epoch, of that commit; None: a signal came."""
        epoch = self._open_best() if self._plateau and not stopped else None
        if not self.history.spans and (earlier := earlier_result(self.run_dir, self.resources)):
            return earlier
        if epoch is not None:
            self._test(epoch)
            if self._signal:
                return None
        return write_result(self.workflow.name, self.run_dir, self.files, self.resources, self.history, stopped)

    def _open_best(self) -> int:
        """Have the weights of the best epoch open, in place of those that were trained last; the epoch they are of."""
        newest = self._committer.newest
        assert newest
        named = [manifest for manifest in self._commits.kept() if manifest.name == "best"]
        opened = named[-1] if named else newest
        if opened != newest:
            self.resources.close()
            self._device.give_back()
            try:
                self.resources = self._open_resources([opened])
            except DoesNotFit as error:
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
        self._committed, self.resources.pause = math.inf, self._signal
        blocks = self.agenda.test(epoch, self._block_batches)
        while blocks and not self._signal:
            refusal = self._run_blocks(blocks)
            if refusal and refusal.what != "pause" and not (refusal.what == "window" and self._reduce(refusal)):
                raise PipelineError(f"the test of epoch {epoch + 1} was refused: {refusal.message}")
            blocks = self.agenda.test(epoch, self._block_batches, refusal.block.first_batch) if refusal else []

    @contextmanager
    def _executor(self) -> Iterator[Executor]:
        if self._client is None:
            yield SerialExecutor(lambda stage, number: self.resources.run(stage, number, time.process_time))
            return
        executor = DaskExecutor(self._client, self.resources.run)
        try:
            yield executor
        finally:
            executor.close()

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
        self.resources.pause = self._signal

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

    def _watch(self, done: Done) -> None:
        self.history.add(done)
        if done.trained is None:
            return
        # Not before a block of this stretch is through, or a commit could follow a commit for ever.
        minutes = self.workflow.commit.every_minutes
        if minutes and time.perf_counter() - self._committed > 60 * minutes:
            self.resources.pause = self.resources.pause or "time for a commit"
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
    keep_freed_memory()
    allow_many_files()
    with nullcontext() if serial else local_client() as client:
        yield Driver(workflow, source, fit, run_dir, client, device=device)
