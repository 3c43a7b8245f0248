"""pipeline tune WORKFLOW: train with other settings, round after round, and write the best workflow."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from pipeline.arguments import tune_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.aside import move_aside
from pipeline.machine.command import run_command
from pipeline.machine.signals import exit_code, heed_interrupts
from pipeline.monitor.command import check_extra
from pipeline.settings.changes import override
from pipeline.storage.lock import RunLock
from pipeline.workflow import load

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from pipeline.tune.processes import Processes
    from pipeline.tune.records import Record, Verdict
    from pipeline.tune.study import Study

CONFIRMED = 3
"""Number of best trials that --confirm trains again."""
FILE_COLUMNS = 100
"""Width of the table of runs without a terminal and COLUMNS."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 with a best workflow, 1 if no trial was complete, 2 if anything was wrong before the
    first one, 130 after SIGINT and 143 after SIGTERM; the same command goes on."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = tune_arguments().parse_args(argv)
    again = shlex.join(["pipeline", "tune", *(word for word in argv if word != "--fresh")])
    return run_command(lambda: tune_command(args, again), f"to go on: {again}")


def tune_command(args: argparse.Namespace, again: str) -> str | int:
    """Run the study as the arguments say. `again`: the command that goes on with it."""
    refuse_remote("--out", args.out)
    workflow = override(load(args.workflow), args.set)
    check_extra("optuna")
    from pipeline.tune.open import open_study
    from pipeline.tune.processes import Processes
    from pipeline.tune.space import space_of

    heed_interrupts()
    out: Path = (args.out or Path("tuning") / workflow.name).absolute()
    file, space = str(args.workflow.absolute()), space_of(workflow, args.workflow)
    with RunLock(out):
        if args.fresh and out.exists():
            say(move_aside(out))
        study = open_study(out, workflow, space, file, args.set, args.seed, args.parallel, args.workers, args.keep)
        tuning = Tuning(study, Processes(out), file, args.set)
        if not tuning.try_all(args.trials, args.hours) or not tuning.finish(args.confirm):
            say(f"{tuning.best_so_far()}\nto go on: {again}")
            assert tuning.processes.signal
            return exit_code(tuning.processes.signal)
        if not study.ranked():
            failed = [trial.user_attrs["text"] for trial in study.trials if trial.user_attrs.get("text")]
            said = failed[-1] if failed else "none was begun"
            running, tables = args.parallel, args.parallel + args.keep
            caps = f" (a trial has 1/{running} of the workflow's caps, and 1/{tables} of storage.disk)"
            say(f"error: no trial was complete; the last one: {said}{caps if 'storage.' in said else ''}")
            return 1
        return json.dumps(tuning.as_json(), indent=1) if args.json else tuning.text


def say(line: str) -> None:
    """Print a line of progress: to stderr, since the result alone is on stdout."""
    print(line, file=sys.stderr, flush=True)


class Tuning:
    """A study as it goes on: its rounds, and its end."""

    def __init__(self, study: Study, processes: Processes, file: str, set_: Sequence[str]) -> None:
        self.study, self.processes, self._file, self._set = study, processes, file, set_
        self.text, self._best, self._test = "", dict[str, Any](), dict[str, Any]()
        self._confirmed: dict[int, list[float]] = {}

    def try_all(self, most: int, hours: float | None) -> bool:
        """Run rounds until there are `most` trials, or a round ends after so many hours. Returns False after a
        signal."""
        study, begun = self.study, time.monotonic()
        study.delete_tables()
        while found := study.next_round(most):
            say(f"trials {', '.join(str(trial.number) for trial in found)} of {most}")
            if not self._train([study.record(trial.number) for trial in found]):
                return False
            for trial in found:
                verdict = study.record(trial.number).verdict()
                assert verdict
                study.tell(trial.number, verdict)
            study.delete_tables()
            if hours is not None and time.monotonic() - begun >= 3600 * hours:
                if len(study.trials) < most:
                    say(f"{hours:g} hours are over; the same command goes on for as long")
                break
        return True

    def _train(self, records: Sequence[Record]) -> bool:
        return self.processes.run(records, self._say_verdict)

    def _say_verdict(self, record: Record, verdict: Verdict) -> None:
        ended = f"{self.study.fixed.metric} {verdict.value:.5f} in epoch {verdict.epoch}" if verdict.value else ""
        say(f"{record.name}: {verdict.state}{': ' * bool(ended or verdict.text)}{ended or verdict.text}")

    def best_so_far(self) -> str:
        from pipeline.tune.report import line_of

        ranked = self.study.ranked()
        return f"the best so far: {line_of(ranked[0], self.study.fixed.metric)}" if ranked else "no trial is complete"

    def finish(self, seeds: int) -> bool:
        """Confirm, test and write what the study ends with. Returns False after a signal."""
        from pipeline.tune.report import confirmed_lines, counts_of, line_of, write_best, write_page

        study, ranked = self.study, self.study.ranked()
        if not ranked:
            return True
        if seeds and not self._confirm(ranked[:CONFIRMED], seeds):
            return False
        best = self._chosen(ranked)
        metric, path = study.fixed.metric, write_best(study, best, self._file, self._set)
        lines = [table_of(study.out / "trials"), ""]
        lines += [f"the best of {len(study.trials)} trials ({counts_of(study.trials)}): {line_of(best, metric)}"]
        lines += ["on validation, which chose it, so the figure is too good"]
        lines += confirmed_lines(self._confirmed, metric)
        run_dir = study.run_dir(best.number)
        if study.workflow.data.test:
            run_dir = study.out / f"best-{best.number:03}"
            if not self._score_test(best, run_dir):
                return False
            lines += self._test_lines()
        lines += [f"its run: {run_dir}", f"its workflow: {path}"]
        self.text = "\n".join(lines)
        self.text += "\n" + write_page(study, self.text)
        self._best = {
            "number": best.number, "value": best.values[0], "settings": study.settings(best), "workflow": str(path),
            "run_dir": str(run_dir),
        }  # fmt: skip
        return True

    def _confirm(self, trials: Sequence[FrozenTrial], seeds: int) -> bool:
        """Train each of the trials with other seeds of the workflow. Returns False after a signal."""
        from pipeline.tune.records import Record
        from pipeline.tune.study import delete_table

        study, of = self.study, dict[str, int]()
        for trial in trials:
            for seed in range(study.workflow.seed + 1, study.workflow.seed + 1 + seeds):
                record = Record(study.out, f"{trial.number:03}-seed{seed}")
                of[record.name] = trial.number
                run_dir = study.out / "confirm" / record.name
                record.write(study.order(trial, run_dir, {"data.test": [], "seed": seed}))
        say(f"the best {len(trials)} trials with {seeds} seeds each")
        for first in range(0, len(of), study.fixed.parallel):
            names = [*of][first : first + study.fixed.parallel]
            if not self._train([Record(study.out, name) for name in names]):
                return False
            for name in names:
                delete_table(study.out / "confirm" / name)
        for name, number in of.items():
            verdict = Record(study.out, name).verdict()
            if verdict and verdict.value is not None:
                self._confirmed.setdefault(number, []).append(verdict.value)
        return True

    def _chosen(self, ranked: Sequence[FrozenTrial]) -> FrozenTrial:
        """The best trial, by the mean over the seeds if there are some."""
        sign = 1 if self.study.direction == "minimize" else -1
        means = {number: sign * mean(values) for number, values in self._confirmed.items()}
        return min(ranked, key=lambda trial: means.get(trial.number, float("inf"))) if means else ranked[0]

    def _score_test(self, best: FrozenTrial, run_dir: Path) -> bool:
        """Train the best trial once more, to the same bits, with the test split. Returns False after a signal."""
        from pipeline.tune.records import Record
        from pipeline.tune.study import delete_table

        study = self.study
        for other in study.out.glob("best-*"):
            if other != run_dir:
                delete_table(other)
        record = Record(study.out, run_dir.name)
        if record.verdict() is None:
            say("the best trial once more, with the test split")
            record.write(study.order(best, run_dir, {}))
            if not self._train([record]):
                return False
        verdict = record.verdict()
        assert verdict
        if verdict.fingerprint != best.user_attrs.get("fingerprint"):
            say(f"warning: {run_dir} has other bits than trial {best.number}: {verdict.text or 'see its output'}")
        self._test = verdict.test or {}
        return True

    def _test_lines(self) -> list[str]:
        from pipeline.monitor.report import evaluated

        tested = len(list((self.study.out / "records").glob("best-*/verdict.json")))
        if not self._test:
            return ["its test failed"]
        times = "once" if tested == 1 else f"as the {tested}th model of this study: the first figure was the honest one"
        return [f"tested {times}: {evaluated(self._test)}"]

    def as_json(self) -> dict[str, Any]:
        from pipeline.tune.report import trial_as_json

        return {
            "metric": self.study.fixed.metric, "best": self._best, "test": self._test, "confirmed": self._confirmed,
            "trials": [trial_as_json(trial) for trial in self.study.trials],
        }  # fmt: skip


def table_of(folder: Path) -> str:
    """The table of `pipeline runs`."""
    from pipeline.monitor.runs import find_runs, groups_of, tables_of_runs

    return tables_of_runs(
        folder, list(groups_of(find_runs(folder)[0])), shutil.get_terminal_size((FILE_COLUMNS, 24))[0]
    )
