"""Scoring of Parquet files through the run's evaluation stages, with the same blocks, tiers and caps, and therefore
bit-identical results. In this folder, only this module imports driver, cluster and worker."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from pipeline.cluster.crew import Crew
from pipeline.cluster.dask_crew import DaskCrew
from pipeline.cluster.local_crew import THREADS, LocalCrew
from pipeline.cluster.pool import WorkerPool
from pipeline.commits.manifest import Commits
from pipeline.commits.reading import GivenUp
from pipeline.data.files import columns_of
from pipeline.data.outside import BadValues, Outside
from pipeline.data.source import Scoring, Source
from pipeline.device.gpu import choose
from pipeline.driver.growth import room_for
from pipeline.driver.loop import Pace, cap_needed
from pipeline.driver.open import recruit
from pipeline.driver.result import read_result
from pipeline.errors import PipelineError
from pipeline.machine.aside import move_output_aside
from pipeline.machine.signals import on_signal
from pipeline.machine.threads import share_of
from pipeline.monitor.progress import Progress
from pipeline.own_code.code import code_digest
from pipeline.preflight.setup import Setup, set_up_scoring
from pipeline.records import StageResult
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.evaluate import check_truth, metrics_line
from pipeline.serving.scored_files import ScoredFile, ScoreWriter, list_files, readable_columns, score_fields, types_of
from pipeline.serving.scoring_record import RECORD, UNFINISHED, ScoringRecord, claim_output
from pipeline.storage.files import Files, checksum
from pipeline.storage.folder import Folder
from pipeline.storage.lock import RunLock
from pipeline.storage.reader import allow_many_files
from pipeline.storage.shards import most_keys
from pipeline.workflow import Task, Workflow


@dataclass(frozen=True, slots=True)
class ScoringOrder:
    """Arguments of scoring: the files, the output, and options."""

    data: Sequence[str]
    out: Path
    keep: Sequence[str] = ()
    workers: int | None = None
    bad_values: BadValues = "clip"
    fresh: bool = False
    """Move the contents of `out` to a backup first."""


class Scorer:
    """Scorer of the files that are not scored yet, in order."""

    def __init__(
        self, opened: OpenedCommit, setup: Setup, crew: Crew, files: Sequence[ScoredFile], writer: ScoreWriter
    ) -> None:
        """`files`: all files; `writer`: writes the unfinished ones."""
        self._opened, self._setup, self._crew, self._writer = opened, setup, crew, writer
        self._pace = Pace(setup.fit.look_ahead, setup.fit.block_batches)
        before = sum(file.num_rows for file in files) - writer.num_rows
        batch_size = setup.workflow.schedule.batch_size
        self._first_batch, self._skip = divmod(before, batch_size)
        self._done, self._total = self._first_batch * batch_size, before + writer.num_rows
        self._signal: str | None = None
        self._paused = False

    def run(self) -> bool:
        """Score all remaining rows. Returns False if a signal came first. Raises PipelineError if a stage fails, and
        GivenUp if training has deleted the commit."""
        agenda, pace, first = self._setup.agenda, self._pace, self._first_batch
        progress = Progress(self._total)
        progress.begin_at(self._done)
        with self._opened.held.explaining(), on_signal(self._stop), progress, self._writer:
            self._crew.open([self._opened.manifest])
            blocks = agenda.test(0, pace.block_batches, first)
            while blocks and not self._signal:
                refusal = self._crew.run(blocks, pace.look_ahead, lambda done: self._take(done, progress))
                self._opened.held.check()
                blocks = agenda.test(0, pace.block_batches, refusal.block.first_batch) if refusal else []
                if refusal and (found := room_for(refusal, self._setup, pace, self._crew)):
                    self._setup = found.setup
                    progress.line(found.remark)
                    if found.must_reopen:
                        self._crew.open([self._opened.manifest])
                elif refusal and refusal.what != "pause":
                    raise PipelineError(
                        f"scoring was refused: {refusal.message}{cap_needed(refusal, self._setup, pace.look_ahead)}"
                    )
        return self._signal is None

    def _take(self, done: StageResult, progress: Progress) -> None:
        if self._signal and not self._paused:
            self._paused = True
            self._crew.pause(self._signal)
        if done.trained and done.trained.scores_NT is not None:
            try:
                self._opened.held.check()
            except GivenUp as gone:
                # Blocks in flight finish first; then `run` checks again and raises.
                self._crew.pause(str(gone))
                return
            scores_NT = done.trained.scores_NT
            self._writer.add(scores_NT[self._skip :])
            self._skip = max(0, self._skip - len(scores_NT))
            self._done += len(scores_NT)
            progress.update(self._done, None)

    def _stop(self, signal: str) -> None:
        self._signal = signal
        self._crew.interrupt(signal)


def score(opened: OpenedCommit, order: ScoringOrder) -> str | None:
    """Score files with a commit. Returns a line with the metrics, or "" if the files have no labels, or None if a
    signal came first: finished files are kept, and the same call scores the others.

    Raises ValueError, before anything runs, if an argument or the data do not match the commit; PipelineError if
    scoring fails.
    """
    out, files = order.out, list_files(order.data, order.out, opened.workflow.data, opened.description)
    with ExitStack() as stack:
        Files().make_folder(out.absolute().parent)
        stack.enter_context(RunLock(out))
        # Scores need neither weights nor groups; only the metrics, computed afterwards, do.
        workflow, has = with_truth(opened.workflow, set()), readable_columns(files, with_values=True)
        world = order.workers or 1
        device, spec = (choose(workflow.device), None) if order.workers is None else recruit(workflow, world, None)
        scoring = Scoring(tuple(file.source for file in files), opened.features.kinds, order.bad_values)
        threads = share_of(workflow.schedule.threads)
        source = Source(workflow.data, workflow.seed, threads, scoring=scoring)
        stack.callback(source.close)
        for note in source.notes:
            _say(note)
        check_keep(order.keep, files, opened.workflow.data.all_tasks)
        check_truth(files, judging := with_truth(opened.workflow, has))
        if order.fresh and (moved := move_output_aside(out, opened.held.run_dir)):
            _say(moved)
        left = files[next((at for at, file in enumerate(files) if not file.out.is_file()), len(files)) :]
        has_rows = any(file.num_rows for file in left)
        keys = most_keys(opened.manifest.keys_of_shards, world)
        setup = set_up_scoring(workflow, device, _say, scoring, source, opened.step, keys, world) if has_rows else None
        record = record_of(opened, order, source)
        claim_output(out, record)
        numbers = [column for column in columns_of(workflow.data) if column.number]
        outside = Outside(order.bad_values)
        stack.callback(lambda: print(*outside.lines(), sep="\n", end="\n" * bool(outside.counts), file=sys.stderr))
        metadata = metadata_of(opened) | {RECORD: record.model_dump_json()}
        tasks, unfinished = opened.workflow.data.all_tasks, out / UNFINISHED
        writer = ScoreWriter(left, tasks, types_of(files, order.keep), metadata, numbers, outside, unfinished)
        if not setup:
            with writer:
                pass
        else:
            allow_many_files()
            run_dir = opened.held.run_dir
            folder = Folder(run_dir, Files(cached=not workflow.storage.direct), opened.speed)
            commits = Commits(run_dir, folder.files, 1)
            if spec:
                pool = stack.enter_context(closing(WorkerPool(spec)))
                crew: Crew = DaskCrew(pool, setup, folder, commits, source.as_begun)
            else:
                crew = LocalCrew(setup, source, folder, commits, device, THREADS)
            stack.callback(crew.close)
            if not Scorer(opened, setup, crew, files, writer).run():
                return None
        try:
            return metrics_line(files, judging)
        except ValueError as error:
            # The files are scored. Unusable labels, such as null, count as missing.
            return f"no metrics: {error}"
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def with_truth(workflow: Workflow, columns: set[str]) -> Workflow:
    """Return the workflow; it keeps its weight and group only if they are among these columns."""
    data, metrics = workflow.data, workflow.metrics
    weight = data.weight if data.weight in columns else None
    group = metrics.group if metrics.group in columns else None
    return workflow.model_copy(
        update={
            "data": data.model_copy(update={"weight": weight}),
            "metrics": metrics.model_copy(update={"group": group}),
        }
    )


def check_keep(keep: Sequence[str], files: Sequence[ScoredFile], tasks: Sequence[Task]) -> None:
    """Raises ValueError if a column to copy is missing from a file, named twice, or has the name of a score column."""
    has, scores = readable_columns(files), score_fields(tasks)
    for name in keep:
        if name not in has:
            raise ValueError(f"--keep {name}: not all files have this column; they all have {', '.join(sorted(has))}")
        if name in scores or keep.count(name) > 1:
            raise ValueError(f"--keep {name}: the output would have two columns of this name; name others")


def record_of(opened: OpenedCommit, order: ScoringOrder, source: Source) -> ScoringRecord:
    return ScoringRecord(
        commit=opened.held.number,
        manifest=checksum(opened.manifest.content()),
        features=opened.features.digest,
        keep=tuple(order.keep),
        workers=order.workers or 1,
        bad_values=order.bad_values,
        data=source.identity["test"].digest,
        code=code_digest(opened.workflow.model.kind),
    )


def metadata_of(opened: OpenedCommit) -> dict[str, str]:
    """Schema metadata of each scored file. The fingerprint is included only for the commit of a finished run."""
    result = read_result(opened.held.run_dir)
    number = opened.held.number
    known = {"pipeline.fingerprint": str(result["fingerprint"])} if result and result["commit"] == number else {}
    return {
        "pipeline.run": opened.workflow.name,
        "pipeline.commit": str(number),
        "pipeline.manifest": checksum(opened.manifest.content()),
        "pipeline.features": opened.features.digest,
        **known,
    }
