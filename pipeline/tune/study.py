"""A study: trials in Optuna's journal, and their run directories.

    OUT/study.json      settings that do not change during the study
    OUT/journal.jsonl   the trials: parameters, reports, values
    OUT/trials/007      the run of a trial, without its table unless it is among the best
    OUT/records/007     its order, losses, output and verdict

Trials run in rounds of `parallel`. A trial depends only on the trials of earlier rounds, through the values that its
sampler draws, with a seed computed from the study's seed and the trial's number, and through the bounds beyond which it
is pruned. Both are durable before it starts, so a study that is killed and resumed runs the same trials as an
uninterrupted one.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from pipeline.settings import Strict
from pipeline.settings.tuning import Between
from pipeline.storage.files import refuse_links
from pipeline.tune.records import QUARTERS, Order, Record, best_so_far, sign_of
from pipeline.tune.space import Space, label_of, other_kinds, own_values, settings_of
from pipeline.workflow import Workflow

NAME = "study"
DRAWN_NEAR = 10
"""Number of judged trials up to which a new trial differs from the workflow in CHANGED of its values. With all values
drawn at random, nearly every trial is worse than a carefully designed workflow."""
CHANGED = 1 / 3
FIRST_TRIALS = 4
"""Minimum number of complete trials of earlier rounds before any trial is pruned. Replayed in random orders, studies of
24 trials on two synthetic logs trained a quarter of their epochs with it; with 2 they would have trained an eighth to a
sixth, and ended 2.3 times as far from the best trial's logloss."""
STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class Fixed(Strict):
    """Content of `study.json`, which must be the same when a study resumes."""

    workflow: dict[str, Any]
    space: dict[str, Any]
    metric: str
    seed: int
    parallel: int
    workers: int | None
    examples: int
    """Number of training examples."""
    content: dict[str, str] | None = None
    """Checksums of the data, of the files that features read, and of an own model's code; None in studies of earlier
    versions of this package."""
    memory: int
    """RAM in bytes for all concurrent trials, if the workflow does not set it."""
    threads: int
    """Number of threads of a trial. It affects the trial's bits."""


class Study:
    def __init__(
        self, out: Path, fixed: Fixed, workflow: Workflow, space: Space, shares: Mapping[str, Any], args: Namespace
    ) -> None:
        """`shares`: settings of a trial's caps and threads. `args`: arguments of the command; `workflow` already
        includes its --set."""
        self.out, self.fixed, self.workflow, self.space, self._shares = out, fixed, workflow, space, shares
        self.file, self.set, self._keep = str(args.workflow.absolute()), tuple(args.set), args.keep_tables
        self._kinds = other_kinds(workflow, space, fixed.seed)
        """Values of the first trials after trial 0, which has the workflow's values."""
        self.sign = sign_of(fixed.metric)
        self.direction = "minimize" if self.sign > 0 else "maximize"
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        mend(path := out / "journal.jsonl")
        # The study's folder is locked. Without this, Optuna would wait for the lock of a killed process.
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        self._storage = JournalStorage(JournalFileBackend(str(path)))
        self.optuna = optuna.create_study(
            study_name=NAME, storage=self._storage, direction=self.direction, load_if_exists=True
        )

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False)

    def ranked(self) -> list[FrozenTrial]:
        """Complete trials, the best first; ties are broken by number."""
        complete = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return sorted(complete, key=lambda trial: (self.sign * trial.values[0], trial.number))

    def settings(self, trial: FrozenTrial) -> dict[str, Any]:
        """Settings of a trial that differ from those of the workflow."""
        return settings_of(self.workflow, trial.params, self.space)

    def record(self, number: int) -> Record:
        return Record(self.out, f"{number:03}")

    def run_dir(self, number: int) -> Path:
        return self.out / "trials" / f"{number:03}"

    def order(self, trial: FrozenTrial, run_dir: Path, more: Mapping[str, Any], prunes: bool = False) -> Order:
        """Order of a training with a trial's settings and the settings `more`."""
        examples, metric = self.fixed.examples, self.fixed.metric
        return Order(
            workflow=self.file, set=self.set, settings=self.settings(trial) | dict(self._shares) | dict(more),
            run_dir=str(run_dir), workers=self.fixed.workers, metric=metric,
            marks=tuple(-(-examples * quarter // QUARTERS) for quarter in range(1, QUARTERS)),
            bounds=bounds_of(self._before(trial.number), metric) if prunes else {},
        )  # fmt: skip

    def next_round(self, most: int) -> list[FrozenTrial]:
        """Return the trials of the next round, with durable parameters and orders; none if there are already `most`."""
        trials, parallel = self.trials, self.fixed.parallel
        running = [trial.number for trial in trials if not trial.state.is_finished()]
        first = (running[0] if running else len(trials)) // parallel * parallel
        for number in range(len(trials), min(first + parallel, most)):
            self._add(number)
        found = [trial for trial in self.trials[first:] if not trial.state.is_finished()]
        for trial in found:
            # With settings meant for another kind, a model may need more epochs, and each kind is tried only once.
            prunes = trial.number > len(self._kinds)
            self.record(trial.number).write(self.order(trial, self.run_dir(trial.number), {"data.test": []}, prunes))
        return found

    def _before(self, number: int) -> list[FrozenTrial]:
        """Trials of earlier rounds."""
        return self.trials[: number // self.fixed.parallel * self.fixed.parallel]

    def _add(self, number: int) -> None:
        drawn, distributions = own_values(self.workflow, self.space), distributions_of(self.space)
        if 0 < number <= len(self._kinds):
            drawn = self._kinds[number - 1]
        elif number:
            seed = int.from_bytes(hashlib.sha256(f"{self.fixed.seed},{number}".encode()).digest()[:4])
            sampler = TPESampler(seed=seed, constant_liar=False, n_startup_trials=DRAWN_NEAR)
            seen = optuna.create_study(direction=self.direction, sampler=sampler)
            seen.add_trials([trial for trial in self._before(number) if trial.state != TrialState.FAIL])
            asked = seen.ask(distributions).params
            changed = {
                name: rounded(asked[name], of) for name, of in distributions.items() if asked[name] != drawn[name]
            }
            if len(seen.trials) <= DRAWN_NEAR:
                # The last of `seen` is the requested one.
                most = max(1, round(CHANGED * len(drawn)))
                names = random.Random(seed).sample([*changed], min(most, len(changed)))
                changed = {name: changed[name] for name in names}
            drawn |= changed
        self.optuna.add_trial(
            optuna.trial.create_trial(state=TrialState.RUNNING, params=drawn, distributions=distributions)
        )

    def tell(self, number: int) -> None:
        """Write a trial's verdict to the journal."""
        verdict = self.record(number).verdict()
        assert verdict
        trial = self._storage.get_trial_id_from_study_id_trial_number(
            self._storage.get_study_id_from_name(NAME), number
        )
        for step, value in sorted((verdict.reports or {}).items()):
            self._storage.set_trial_intermediate_value(trial, step, value)
        for name in ("text", "epoch", "fingerprint", "seconds"):
            self._storage.set_trial_user_attr(trial, name, getattr(verdict, name))
        self.optuna.tell(number, verdict.value, STATES[verdict.state])

    def delete_tables(self) -> None:
        """Delete the tables of all trials except the best. Their metrics stay."""
        kept = {trial.number for trial in self.ranked()[: self._keep]}
        for trial in self.trials:
            if trial.state.is_finished() and trial.number not in kept:
                delete_table(self.run_dir(trial.number))


def has_table(run_dir: Path) -> bool:
    """True if `delete_table` has not been called for a run."""
    return (run_dir / "table.zarr").is_dir()


def delete_table(run_dir: Path) -> None:
    """Delete a run's rows and dense states, but not the files that `pipeline runs` reads. May be called again."""
    if run_dir.is_dir():
        refuse_links([run_dir.parent, run_dir, run_dir / "commits"])
    for path in run_dir.iterdir() if run_dir.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and path.name in ("table.zarr", "features"):
            shutil.rmtree(path)
        elif path.name in ("reserve", "model.safetensors"):
            path.unlink()
    for path in (run_dir / "commits").glob("*"):
        if path.suffix != ".json":
            path.unlink()


def mend(journal: Path) -> None:
    """Remove an unfinished last line of the journal, left by a kill."""
    refuse_links([journal])
    content = journal.read_bytes() if journal.is_file() else b""
    if not content.endswith(b"\n") and content:
        with open(journal, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    found: dict[str, BaseDistribution] = {}
    for path, values in space.items():
        if not isinstance(values, Between):
            found[path] = CategoricalDistribution([label_of(value) for value in values])
        elif isinstance(values.low, int) and isinstance(values.high, int):
            found[path] = IntDistribution(values.low, values.high, log=values.log)
        else:
            found[path] = FloatDistribution(values.low, values.high, log=values.log)
    return found


def rounded(value: Any, distribution: BaseDistribution) -> Any:
    """Round a float to three digits, as a person would write it; return other values unchanged."""
    if not isinstance(distribution, FloatDistribution):
        return value
    return min(max(float(f"{value:.3g}"), distribution.low), distribution.high)


def bounds_of(trials: Sequence[FrozenTrial], metric: str) -> dict[int, float]:
    """Worst value at each step for which a trial is not pruned: the median, over the complete ones of `trials`, of the
    best validation so far; within the first epoch the quartile of their losses, since dropout and L2 increase these but
    may improve validation."""
    complete = [
        best_so_far(trial.intermediate_values, metric) for trial in trials if trial.state == TrialState.COMPLETE
    ]
    if len(complete) < FIRST_TRIALS:
        return {}
    bounds, sign = {}, sign_of(metric)
    for step in sorted({step for reports in complete for step in reports}):
        # A trial that ended earlier counts with its best.
        values = [
            sign * reports[max(known)]
            for reports in complete
            if (known := [at for at in reports if at <= step and (at % QUARTERS == 0 or at == step)])
        ]
        if step % QUARTERS == 0:
            bounds[step] = sign * median(values)
        elif len(values) >= FIRST_TRIALS:
            bounds[step] = sign * quantiles(values, n=4, method="inclusive")[2]
    return bounds
