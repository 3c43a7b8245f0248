"""pipeline tune WORKFLOW: train with different settings, round after round, and write the best workflow."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import tune_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.aside import move_aside
from pipeline.machine.signals import exit_code, heed_interrupts, run_command
from pipeline.monitor.command import check_extra
from pipeline.settings.changes import override
from pipeline.storage.lock import RunLock
from pipeline.workflow import load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 with a best workflow, 1 if no trial completed, 2 if something was wrong before the
    first trial, 130 after SIGINT and 143 after SIGTERM. The same command resumes."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = tune_arguments().parse_args(argv)
    again = shlex.join(["pipeline", "tune", *(word for word in argv if word != "--fresh")])
    return run_command(lambda: tune_command(args, again), f"to resume: {again}")


def tune_command(args: argparse.Namespace, again: str) -> str | int:
    """Run the study according to the arguments. `again`: the command that resumes it."""
    refuse_remote("--out", args.out)
    workflow = override(load(args.workflow), args.set)
    check_extra("optuna", "optuna")
    from pipeline.tune.open import open_study
    from pipeline.tune.space import space_of
    from pipeline.tune.tuning import Tuning, say

    heed_interrupts()
    out: Path = (args.out or Path("tuning") / workflow.name).absolute()
    with RunLock(out):
        if args.fresh and out.exists():
            say(move_aside(out))
        study = open_study(out, workflow, space_of(workflow, args.workflow), args)
        tuning = Tuning(study)
        if not tuning.try_all(args.trials, args.hours) or not tuning.finish(args.confirm):
            say(f"{tuning.best_so_far()}\nto resume: {again}")
            assert tuning.processes.signal
            return exit_code(tuning.processes.signal)
        if not study.ranked():
            said = next((trial.user_attrs["text"] for trial in reversed(study.trials)), "")
            parts = (
                f"1/{args.parallel} of the workflow's caps, and 1/{args.parallel + args.keep_tables} of storage.disk"
            )
            say(f"error: no trial completed; {said}{f' (a trial has {parts})' if 'storage.' in said else ''}")
            return 1
        return json.dumps(tuning.as_json(), indent=1) if args.json else tuning.text
