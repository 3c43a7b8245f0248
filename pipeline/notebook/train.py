"""pipeline.train: what `pipeline run` does, as a function whose result can be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.driver.finished import finished
from pipeline.driver.session import open_session, plan_session
from pipeline.machine.memory import keep_freed_memory
from pipeline.machine.signals import interruption
from pipeline.machine.stuck import watched
from pipeline.run import override, say
from pipeline.serving.opened import OpenRun, open_run
from pipeline.workflow import Workflow, load


@watched()
def train_workflow(
    workflow: Workflow | str | Path, run_dir: str | Path | None = None, *, settings: Mapping[str, Any] | None = None,
    fresh: bool = False, serial: bool = False, workers: int | None = None, scheduler: str | None = None,
    dashboard: str | None = None,
) -> OpenRun:  # fmt: skip
    """Train, and return the run opened at its best commit; close it, or use it in a `with` block.

    `workflow`: a value, or the file that holds one. `run_dir`: folder of all that the run writes (default: runs/NAME).
    `settings`: values of fields by their paths, such as {"optimizer.rows.lr": 0.01}. The others are the options of
    `pipeline run`. What an earlier call began goes on.

    Raises ValueError if anything is wrong before the training, PipelineError if it fails, and after Ctrl-C
    KeyboardInterrupt (after SIGTERM SystemExit, with code 143), once the planned blocks are trained and committed: the
    same call goes on from there, and `open_run(run_dir)` opens what there is.
    """
    found = workflow if isinstance(workflow, Workflow) else load(Path(workflow))
    found = override(found, [f"{path}={json.dumps(value)}" for path, value in (settings or {}).items()])
    keep_freed_memory()
    session = plan_session(found, Path(run_dir) if run_dir else None, serial, workers, scheduler, say, dashboard)
    if not fresh and (lines := finished(session)):
        print("\n".join(lines))
    else:
        with open_session(session, fresh) as driver:
            if driver.run() is None:
                print(driver.what_stands())
            if driver.pauses.signal:
                raise interruption(driver.pauses.signal)
    return open_run(session.run_dir, workflow=found)
