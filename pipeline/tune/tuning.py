"""The course of a study: the processes of its trainings, its rounds, and its final output."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from optuna.trial import FrozenTrial

from pipeline.machine.signals import on_signal
from pipeline.monitor.report import evaluated
from pipeline.monitor.runs import FILE_COLUMNS
from pipeline.tune.records import Record, Verdict
from pipeline.tune.report import counts_of, line_of, table_of, write_best, write_page
from pipeline.tune.study import Study, delete_table, has_table

POLL_SECONDS = 0.05
STARTS = 4
"""Number of starts of a training per session after which a kill counts as a failure."""
LAST_LINES = 3
"""Number of last lines of a process's output that form the text of its failure."""


class Processes:
    """Runs the trainings of a study; those of one call run concurrently."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.signal: str | None = None
        """Name of the signal that asked the study to stop; None if there was none."""

    def run(self, records: Sequence[Record], judged: Callable[[Record, Verdict], None]) -> bool:
        """Run all records without a verdict concurrently, and call `judged` for each as it gets one. Returns False if a
        signal arrives before all have one; the others have then committed and resume at the next call."""
        starts = dict.fromkeys((record.name for record in records if record.verdict() is None), 0)
        waiting = {record.name: record for record in records if record.name in starts}
        with on_signal(self._stop):
            while waiting:
                for name, record in list(waiting.items()):
                    process = self._running.get(name)
                    if process is None and not self.signal:
                        starts[name] += 1
                        self._running[name] = self.start(record)
                    elif process is None or process.poll() is not None:
                        self._running.pop(name, None)
                        if process and (verdict := self._verdict(record, process.returncode, starts[name])):
                            judged(record, verdict)
                            del waiting[name]
                        elif self.signal:
                            del waiting[name]
                time.sleep(POLL_SECONDS)
        return all(record.verdict() for record in records)

    def start(self, record: Record) -> subprocess.Popen[bytes]:
        """Start the training of a record in a process."""
        # Without -P, the process would also import from the current folder what is named like a library there.
        command = [sys.executable, "-P", "-m", "pipeline.tune.trial", str(self._out), record.name, str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with open(record.output, "ab") as output:
            # In a separate process group, a process gets the terminal's signals only through the study.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
            )

    def _verdict(self, record: Record, code: int, starts: int) -> Verdict | None:
        """Verdict of a process that has ended; None if it must be restarted."""
        if found := record.verdict():
            return found
        was_stopped = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        if was_stopped and (self.signal or starts < STARTS):
            return None
        lines = record.output.read_text(errors="replace").splitlines()[-LAST_LINES:]
        text = f"it was killed {starts} times" if was_stopped else f"its process ended with code {code}"
        failed = Verdict(state="failed", text=": ".join([text, " ".join(lines)]))
        record.write(failed)
        return failed

    def _stop(self, name: str) -> None:
        self.signal = name
        os.write(2, f"\n{name}: the trials stop at a commit; a second signal stops at once\n".encode())
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)


CONFIRMED = 3
"""Number of best trials that --confirm retrains."""


def say(line: str) -> None:
    """Print a line of progress to stderr; stdout is only for the result."""
    print(line, file=sys.stderr, flush=True)


def say_verdict(record: Record, verdict: Verdict) -> None:
    ended = verdict.text if verdict.value is None else f"{verdict.value:.5f} in epoch {verdict.epoch}"
    say(f"{record.name}: {verdict.state}: {ended}")


class Tuning:
    def __init__(self, study: Study) -> None:
        self.study, self.processes = study, Processes(study.out)
        self.text = ""
        self._found: dict[str, Any] = {"best": {}, "test": {}, "confirmed": {}}

    def try_all(self, most: int, hours: float | None) -> bool:
        """Run rounds until there are `most` trials, or until a round ends after `hours`. Returns False after a
        signal."""
        study, begun = self.study, time.monotonic()
        study.delete_tables()
        while found := study.next_round(most):
            say(f"trials {', '.join(str(trial.number) for trial in found)} of {most}")
            if not self._train([study.record(trial.number) for trial in found]):
                return False
            for trial in found:
                study.tell(trial.number)
            study.delete_tables()
            if hours is not None and time.monotonic() - begun >= 3600 * hours:
                if len(study.trials) < most:
                    say(f"{hours:g} hours are over; the same command continues for as long again")
                break
        return True

    def _train(self, records: Iterable[Record]) -> bool:
        return self.processes.run(list(records), say_verdict)

    def best_so_far(self) -> str:
        ranked = self.study.ranked()
        return f"the best so far: {line_of(ranked[0], self.study.fixed.metric)}" if ranked else "no trial is complete"

    def finish(self, seeds: int) -> bool:
        """Confirm with `seeds` seeds, test, and write the results of the study. Returns False after a signal."""
        study, ranked = self.study, self.study.ranked()
        if not ranked:
            return True
        if seeds and not self._confirm(ranked[:CONFIRMED], seeds):
            return False
        confirmed: dict[int, list[float]] = self._found["confirmed"]
        best = min(
            ranked, key=lambda trial: study.sign * mean(confirmed[trial.number]) if trial.number in confirmed else 1e99
        )
        path, run_dir = write_best(study, best), study.run_dir(best.number)
        lines = [
            table_of(study, shutil.get_terminal_size((FILE_COLUMNS, 24)).columns), "",
            f"the best of {len(study.trials)} trials ({counts_of(study.trials)}): {line_of(best, study.fixed.metric)}",
            "on validation, which also selected it, so the figure is optimistic",
        ]  # fmt: skip
        for number, values in confirmed.items():
            lines.append(
                f"trial {number} with {len(values)} other seeds: {study.fixed.metric} {mean(values):.5f} "
                f"({min(values):.5f} to {max(values):.5f})"
            )
        if study.workflow.data.test:
            if (tested_in := self._score_test(best)) is None:
                return False
            run_dir = tested_in
            tested = len(list((study.out / "records").glob("best-*/verdict.json")))
            times = (
                "once" if tested == 1 else f"as model {tested} of this study; only the test of the first was unbiased"
            )
            lines.append(f"tested {times}: {evaluated(test)}" if (test := self._found["test"]) else "its test failed")
        self.text = "\n".join([*lines, f"its run: {run_dir}", f"its workflow: {path}"])
        self.text += f"\n{write_page(study, self.text)}"
        self._found["best"] = {
            "number": best.number, "value": best.values[0], "settings": study.settings(best), "workflow": str(path),
            "run_dir": str(run_dir),
        }  # fmt: skip
        return True

    def _confirm(self, trials: Sequence[FrozenTrial], seeds: int) -> bool:
        """Train each of the trials with other seeds. Returns False after a signal."""
        study, records = self.study, list[tuple[int, Record]]()
        say(f"the best {len(trials)} trials with {seeds} other seeds each")
        for trial in trials:
            for seed in range(study.workflow.seed + 1, study.workflow.seed + 1 + seeds):
                records.append((trial.number, record := Record(study.out, f"{trial.number:03}-seed{seed}")))
                run_dir = study.out / "confirm" / record.name
                record.write(study.order(trial, run_dir, {"data.test": [], "seed": seed}))
        for first in range(0, len(records), study.fixed.parallel):
            some = [record for _, record in records[first : first + study.fixed.parallel]]
            if not self._train(some):
                return False
            for record in some:
                delete_table(study.out / "confirm" / record.name)
        for number, record in records:
            if (verdict := record.verdict()) and verdict.value is not None:
                self._found["confirmed"].setdefault(number, []).append(verdict.value)
        return True

    def _score_test(self, best: FrozenTrial) -> Path | None:
        """Test the best trial on the test split, with its run if the table was kept, else with a run that is retrained
        to the same bits. Returns the folder of the tested run; None after a signal."""
        study, name = self.study, f"best-{best.number:03}"
        for other in study.out.glob("best-*"):
            if other.name != name:
                delete_table(other)
        record = Record(study.out, name)
        if record.verdict() is None:
            # An interrupted test continues in its run.
            once_more, kept = study.out / name, study.run_dir(best.number)
            is_kept = has_table(kept) and not once_more.is_dir()
            say(f"the best trial {'on' if is_kept else 'once more, with'} the test split")
            record.write(study.order(best, kept if is_kept else once_more, {}))
            if not self._train([record]):
                return None
        verdict, run_dir = record.verdict(), Path(record.order().run_dir)
        assert verdict
        if verdict.fingerprint != best.user_attrs["fingerprint"]:
            say(f"warning: {run_dir} differs in its bits from trial {best.number}: {verdict.text or record.output}")
        self._found["test"] = verdict.test or {}
        return run_dir

    def as_json(self) -> dict[str, Any]:
        trials = [
            {"number": trial.number, "state": trial.state.name.lower(), "value": (trial.values or [None])[0],
             "params": trial.params, "reports": trial.intermediate_values, **trial.user_attrs}
            for trial in self.study.trials
        ]  # fmt: skip
        return {"metric": self.study.fixed.metric, **self._found, "trials": trials}
