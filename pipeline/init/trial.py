"""Trial of candidate workflows: each is trained on the log or a sample of it, and the validation split decides.

The same files give the same draft: the sample is drawn with a fixed seed, training uses one thread, and the work is
limited by rows and epochs, never by time.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.driver.driver import Driver
from pipeline.driver.session import open_session, plan_session
from pipeline.errors import PipelineError, error_text
from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.types import concatenated, is_list
from pipeline.init.choice import Choice, of_role
from pipeline.init.columns import codes_of
from pipeline.init.division import HELD_OUT, moments_of
from pipeline.machine.signals import on_signal
from pipeline.prepare.draft import ADDING, ATTENTIVE, DEEP, FAST, FREER, LINEAR, MAX_EPOCHS, Draft, workflow_text
from pipeline.prepare.statistics import write_numbers
from pipeline.records import I32, I64
from pipeline.serving.commit import open_commit
from pipeline.serving.scoring import ScoringOrder, score
from pipeline.workflow import load

F64 = NDArray[np.float64]
MOST_ROWS = 200_000
"""Maximum number of training rows, and of validation rows, for each candidate."""
TRAIN, HELD = "train.parquet", "validation.parquet"
SECONDS_OF_CELL, SECONDS_OF_EPOCH = 5e-7, 1.5
"""Approximate time per value in an epoch, and fixed time per epoch."""


@dataclass(slots=True)
class Interrupt:
    """Signal during the trial. It is recorded, and raised only at safe points: an exception within a compilation or a
    library may get lost."""

    signal: str = ""
    driver: Driver | None = None
    """Candidate in training, which is asked to stop early."""

    def note(self, signal: str) -> None:
        """Signal handler: record the signal, and ask the candidate in training to stop."""
        self.signal = signal
        # The leading newline ends the line with the terminal's ^C.
        os.write(2, f"\n{signal}: no more is tried; a second signal ends `init` at once and writes nothing\n".encode())
        if self.driver:
            self.driver.pauses.ask(signal)

    def check(self) -> None:
        """Raises KeyboardInterrupt after a signal."""
        if self.signal:
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Trial:
    """Candidate after training."""

    draft: Draft
    losses_N: F64
    """Logloss of each validation row, averaged over the labels; empty if training failed."""
    loss: float
    """Weighted mean of `losses_N`; infinite if training failed."""
    epochs: int
    """Number of epochs up to the best one."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for training the candidates, and rows for evaluating them."""

    train: pa.Table
    held: pa.Table
    why: str
    """Description of the evaluation rows."""
    whole: bool
    """True if `train` contains all rows of the training split, or all that are not in `held`."""


def candidates(draft: Draft) -> list[Draft]:
    """Drafts that differ in their recipe: linear models with strong and weak L2, which win without interactions; the
    default; the default with a higher row learning rate, which helps if each value is frequent; and both forms of
    attention to sequences. There is no linear model for several labels."""
    recipes = [DEEP, FAST] if len(draft.labels) > 1 else [LINEAR, FREER, DEEP, FAST]
    recipes += [ATTENTIVE, ADDING] if draft.sequences else []
    return [replace(draft, recipe=recipe) for recipe in recipes]


def try_candidates(draft: Draft, files: Mapping[str, Sequence[DataFile]], choices: Sequence[Choice]) -> Draft:
    """Return the draft of the candidate with the lowest validation logloss, with all results as comments, or the same
    draft, with a message, if there is none. `files`: Parquet files of each split. Raises KeyboardInterrupt after a
    signal."""
    rows = rows_of(draft, files, choices)
    for part, where in ((rows.train, "the training rows"), (rows.held, rows.why)):
        for label in draft.labels:
            if pc.count_distinct(part.column(label)).as_py() < 2:
                print(f"no candidates are tried: {label} has one value in {where}")
                return draft
    names = [*draft.numbers, *(category.name for category in draft.categories)]
    with tempfile.TemporaryDirectory(prefix="pipeline_init_") as scratch:
        folder = Path(scratch)
        for name, part in ((TRAIN, rows.train), (HELD, rows.held)):
            pq.write_table(part, folder / name, row_group_size=1 << 16)
        small = replace(
            draft,
            root=f"Path({scratch!r})",
            splits={"train": [TRAIN], "validation": [HELD]},
            num_rows=len(rows.train),
            rates={label: pc.mean(rows.train.column(label).cast(pa.float64())).as_py() for label in draft.labels},
        )
        drafts = candidates(small)
        if small.numbers:
            known = {one.num_buckets: one for one in drafts}
            numbers = {n: write_numbers(one, folder, folder / f"{n}.json") for n, one in known.items()}
            drafts = [
                replace(one, numbers=numbers[one.num_buckets], statistics=f"{one.num_buckets}.json") for one in drafts
            ]
        seconds = SECONDS_OF_EPOCH + SECONDS_OF_CELL * (num_values(rows.train, names) + num_values(rows.held, names))
        minutes = max(1, math.ceil(len(drafts) * MAX_EPOCHS * seconds / 60))
        print(
            f"{len(drafts)} candidates are tried on {len(rows.train):,} training rows, in about {minutes} minutes at "
            "most; Ctrl-C ends that and writes the draft of --no-try",
            flush=True,
        )
        trials = []
        interrupt = Interrupt()
        with on_signal(interrupt.note):
            for number, candidate in enumerate(drafts):
                trials.append(found := trained(candidate, folder / f"{number}.py", rows.held, interrupt))
                interrupt.check()
                if math.isfinite(found.loss):
                    said = f"validation logloss {found.loss:.5f} in epoch {found.epochs}"
                    print(f"  {candidate.recipe}: {said}", flush=True)
    winner = int(np.argmin([trial.loss for trial in trials]))
    if not math.isfinite(trials[winner].loss):
        print("no candidates are tried: the training of every candidate failed")
        return draft
    epochs = None if files.get("validation") else trials[winner].epochs
    notes = report_of(trials, winner, rows, draft)
    print(f"taken: {trials[winner].draft.recipe}")
    return replace(candidates(draft)[winner], epochs=epochs, notes=notes)


def num_values(table: pa.Table, names: Sequence[str]) -> int:
    """Number of values in these columns, including all values in lists."""
    columns = [table.column(name) for name in names if name in table.column_names]
    return sum(
        pc.sum(pc.list_value_length(column), min_count=0).as_py() if is_list(column.type) else len(column)
        for column in columns
    )


def rows_of(draft: Draft, files: Mapping[str, Sequence[DataFile]], choices: Sequence[Choice]) -> Rows:
    """Read the rows for training and evaluation. Without a validation split, the last rows by time are held out, else
    the rows of some groups, else random rows."""
    features = [*draft.numbers, *(category.name for category in draft.categories)]
    time = next((choice.column for choice in of_role(choices, "time")), None)
    of_calendar = draft.time.column if draft.time else ""
    names = dict.fromkeys([*draft.labels, *features, *filter(None, (of_calendar, draft.weight, draft.group))])
    if files.get("validation"):
        train, whole = sampled(files["train"], list(names))
        return Rows(train, sampled(files["validation"], list(names))[0], "the validation split", whole)
    table, whole = sampled(files["train"], [*names, *([time.name] if time and time.name not in names else [])])
    found = None
    if time and time.name in table.column_names:
        found = moments_of(table.column(time.name), time.types.get("time", ""))
    if found and (border := _border(found[0])) is not None:
        held_N, why = found[0] >= border, "the last rows by time of the training split"
    elif draft.group:
        held_N, why = _of_some(codes_of(table.column(draft.group))), "the rows of some groups of the training split"
    else:
        held_N, why = _of_some(np.arange(len(table))), "some rows of the training split, drawn at random"
    return Rows(table.filter(pa.array(~held_N)), table.filter(pa.array(held_N)), why, whole)


def sampled(paths: Sequence[DataFile], names: Sequence[str]) -> tuple[pa.Table, bool]:
    """Columns of at most MOST_ROWS rows of Parquet files, drawn with a fixed seed, in file order, in one pass; and
    whether these are all rows. Columns that no file has are omitted."""
    total, there = 0, set()
    for path in paths:
        with open_file(path) as file:
            total += file.metadata.num_rows
            there |= {*file.schema_arrow.names}
    names = [name for name in names if name in there]
    taken_K = np.arange(total)
    if total > MOST_ROWS:
        taken_K = np.sort(np.random.default_rng(0).choice(total, MOST_ROWS, replace=False))
    tables, first = [], 0
    for path in paths:
        with open_file(path) as file:
            for batch in file.iter_batches(1 << 16, columns=names, use_threads=False):
                begin, end = np.searchsorted(taken_K, (first, first + len(batch)))
                tables.append(pa.Table.from_batches([batch]).take(pa.array(taken_K[begin:end] - first)))
                first += len(batch)
    return concatenated(tables), total <= MOST_ROWS


def _border(moments_N: I64) -> int | None:
    """Time from which rows are held out, about HELD_OUT of them; None if less than half of the rows would remain."""
    different, counts = np.unique(moments_N, return_counts=True)
    before = (np.cumsum(counts) - counts) / counts.sum()
    at = int(np.abs(1 - before - HELD_OUT).argmin())
    return int(different[at]) if before[at] >= 0.5 else None


def _of_some(codes_N: I32 | I64) -> NDArray[np.bool_]:
    """[N] True for rows with codes drawn at random, about HELD_OUT of the codes."""
    drawn = np.random.default_rng(0x68656C64).random(int(codes_N.max(initial=0)) + 1) < HELD_OUT
    return np.asarray(drawn[codes_N])


def trained(draft: Draft, file: Path, held: pa.Table, interrupt: Interrupt) -> Trial:
    """Write a candidate to a file, train it in the same folder, and score the validation rows with its best epoch. The
    logloss is infinite if training fails. Raises KeyboardInterrupt after a signal."""
    file.write_text(workflow_text(draft))
    # Results depend on the number of threads.
    workflow = load(file).with_settings({"schedule.threads": 1, "device": "cpu"})
    run_dir, scores_dir, validation = file.with_suffix(""), file.with_suffix(".scores"), file.parent / HELD
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            session = plan_session(workflow, run_dir, True, None, None, lambda line: None)
            with open_session(session, False) as driver:
                interrupt.driver = driver
                interrupt.check()
                driver.run(heeds=False)
                interrupt.driver = None
                interrupt.check()
                best = driver.best.verdict(driver.history).best
            opened = open_commit(run_dir, None, workflow)
            with opened.held:
                if score(opened, ScoringOrder([str(validation)], scores_dir)) is None:
                    raise KeyboardInterrupt
    except (PipelineError, ValueError, OSError, MemoryError) as error:
        print(f"  {draft.recipe} failed: {error_text(error)}")
        return Trial(draft, np.empty(0), math.inf, 0)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    scores = pq.read_table(scores_dir / HELD)
    losses = [_loss(scores.column(f"{label}.probability"), held.column(label)) for label in draft.labels]
    losses_N = np.asarray(np.mean(losses, axis=0))
    return Trial(draft, losses_N, mean_and_error(losses_N, held, draft)[0], (best or 0) + 1)


def _loss(chances: pa.ChunkedArray, labels: pa.ChunkedArray) -> F64:
    """[N] logloss of each row."""
    chances_N = np.clip(chances.to_numpy().astype(np.float64), 1e-7, 1 - 1e-7)
    return np.asarray(-np.log(np.where(labels.cast(pa.float64()).to_numpy() > 0.5, chances_N, 1 - chances_N)))


def mean_and_error(values_N: F64, held: pa.Table, draft: Draft) -> tuple[float, float]:
    """Weighted mean of a value per row, and its standard error, which is clustered by group if there are groups."""
    weights_N = np.ones(len(values_N))
    if draft.weight:
        weights_N = held.column(draft.weight).cast(pa.float64()).to_numpy()
    mean = float((weights_N * values_N).sum() / weights_N.sum())
    errors_N = weights_N * (values_N - mean)
    if draft.group:
        errors_N = np.bincount(codes_of(held.column(draft.group)), errors_N).astype(np.float64)
    return mean, float(np.sqrt((errors_N**2).sum()) / weights_N.sum())


def report_of(trials: Sequence[Trial], winner: int, rows: Rows, draft: Draft) -> list[str]:
    """Lines with the results of all candidates."""
    best = min(trials, key=lambda trial: trial.loss)
    lines = [
        f"Tried on {len(rows.train):,} training rows{'' if rows.whole else ', a sample'}: logloss on {rows.why},",
        "and the difference to the best with its standard error. Taken (*): the best.",
    ]
    width = max(len(str(trial.draft.recipe)) for trial in trials)
    for number, trial in enumerate(trials):
        figures = "failed"
        if math.isfinite(trial.loss):
            more, error = mean_and_error(trial.losses_N - best.losses_N, rows.held, draft)
            figures = f"{trial.loss:.5f}  +{more:.5f} +- {error:.5f}"
        lines.append(f"{'*' if number == winner else ' '} {trial.draft.recipe!s:{width}}  {figures}")
    return lines
