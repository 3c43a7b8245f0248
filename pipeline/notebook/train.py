"""pipeline.train: what `pipeline run` does, as a function whose result can be used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from pipeline.driver.finished import finished
from pipeline.driver.session import open_session, plan_session
from pipeline.errors import PipelineError
from pipeline.machine.memory import keep_freed_memory
from pipeline.machine.signals import interruption
from pipeline.machine.stuck import watched
from pipeline.run import say
from pipeline.serving.opened import OpenRun, open_run
from pipeline.workflow import Workflow, load


@watched()
def train_workflow(
    workflow: Workflow | str | Path, run_dir: str | Path | None = None, *, settings: Mapping[str, Any] | None = None,
    fresh: bool = False, serial: bool = False, workers: int | None = None, scheduler: str | None = None,
    dashboard: str | None = None, verbose: bool = True,
) -> OpenRun:  # fmt: skip
    """Train, and return the run opened at its best commit; close it, or use it in a `with` block.

    `workflow`: a value, or the file that holds one. `run_dir`: folder of all that the run writes (default: runs/NAME).
    `settings`: values of fields by their paths, such as {"optimizer.rows.lr": 0.01, "model.kind": MyModel}.
    `verbose`: False prints warnings only; the process's standard output is discarded meanwhile. The others are the
    options of `pipeline run`. What an earlier call began goes on.

    Raises ValueError if anything is wrong before the training, PipelineError if it fails, and after Ctrl-C
    KeyboardInterrupt (after SIGTERM SystemExit, with code 143), once the planned blocks are trained and committed: the
    same call goes on from there, and `open_run(run_dir)` opens what there is.
    """
    if getattr(current_process(), "_inheriting", False):
        # A worker's process imports the script that started it, and nobody waits for what it would train.
        raise SystemExit('a worker imports this script: put pipeline.train under `if __name__ == "__main__":`')
    try:
        with nullcontext() if verbose else redirect_stdout(StringIO()):
            found = _found(workflow, settings or {})
            keep_freed_memory()
            run_dir = Path(run_dir) if run_dir else None
            session = plan_session(found, run_dir, serial, workers, scheduler, say, dashboard)
            if not fresh and (lines := finished(session)):
                print(in_python("\n".join(lines)))
            else:
                with open_session(session, fresh) as driver:
                    if driver.run() is None:
                        print(in_python(driver.what_stands()))
                    if driver.pauses.signal:
                        raise interruption(driver.pauses.signal)
            return open_run(session.run_dir, workflow=found)
    except (ValueError, PipelineError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = in_python(error.args[0]), *error.args[1:]
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        if isinstance(cause, FloatingPointError):
            # Its message names the class and the line; the frames between are those of this package.
            raise error.with_traceback(None) from None
        raise


def _found(workflow: object, settings: Mapping[str, Any]) -> Workflow:
    """Return the workflow with these settings. Raises ValueError if there is none, or if a setting is wrong."""
    if not isinstance(workflow, Workflow | str | Path):
        raise ValueError(
            f"pipeline.train takes a workflow or the file of one, got a {type(workflow).__name__}; for a table of "
            "data, write it to a Parquet file, and `pipeline init FILE` writes its workflow"
        )
    return (workflow if isinstance(workflow, Workflow) else load(Path(workflow))).with_settings(settings)


IN_PYTHON = (
    ("the same command", "the same call"), ("--fresh", "fresh=True"), ("--serial", "serial=True"),
    ("--run-dir", "run_dir="), ("--workers", "workers="), ("--scheduler", "scheduler="), ("--workflow", "workflow="),
    ("--dashboard", "dashboard="), ("--set ", "settings: "),
)  # fmt: skip
SETTING = re.compile(r"--set (?:'([\w.]+)=([^']*)'|([\w.]+)=([^\s;,]+))")


def in_python(text: str) -> str:
    """Message of a command in which options are arguments of the call, and `--set a.b=c` is settings={"a.b": c}."""

    def setting(found: re.Match[str]) -> str:
        path, value = found[1] or found[3], found[2] if found[1] else found[4]
        try:
            return f"settings={{{path!r}: {json.loads(value)!r}}}"
        except ValueError:
            return f"settings={{{path!r}: {value!r}}}"

    text = SETTING.sub(setting, text)
    for option, argument in IN_PYTHON:
        text = text.replace(option, argument)
    return text
