"""Training on files as they become complete: start or resume, wait for files, extend the run with them, and wait again.

The wait itself has no persistent state. The run's commits record the trained files, so after Ctrl-C or a power failure
the same command resumes: first with unfinished work of the last commit, then with files that the commit does not list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pipeline.arrivals.complete import Arrivals
from pipeline.driver.resume import begun_of
from pipeline.files.find import place_of
from pipeline.machine.signals import exit_code, on_signal
from pipeline.workflow import Workflow

LOOK_SECONDS = 5.0
"""Interval between checks of the folder."""
SILENT_SECONDS = 60.0
"""Waiting time before a wait is reported."""
NAMED = 3
"""Maximum number of incomplete files named in the report."""


def watch(
    train: Callable[[tuple[str, ...]], int], arrivals: Arrivals, known: Callable[[], Collection[str]],
    say: Callable[[str], None],
) -> int:  # fmt: skip
    """Train until a signal arrives or training fails, and return the exit code.

    `train`: extends the run with files and returns the exit code; without files, starts or resumes the run. `known`:
    returns the places of the run's files.
    """
    code, given = train(()), set[str]()
    while not code:
        signals: list[str] = []
        with on_signal(signals.append):
            files = wait_for_files(arrivals, {*known(), *given}, say, lambda: bool(signals))  # noqa: B023
        if not files:
            say(f"stopped waiting for files in {arrivals.folder}: all that came is committed; the same command resumes")
            return exit_code(signals[0])
        say(f"{len(files)} new {'file' if len(files) == 1 else 'files'}: {files[0]}{' ...' if len(files) > 1 else ''}")
        code = train(files)
        given |= {*files}
    return code


def wait_for_files(
    arrivals: Arrivals, known: Collection[str], say: Callable[[str], None], is_stopped: Callable[[], bool]
) -> tuple[str, ...]:
    """Wait for complete files that are not `known`, and return their places, ordered by name; return none when
    `is_stopped` returns True. `say` is called once if the wait takes more than a minute."""
    begun, has_said = time.monotonic(), False
    while not is_stopped():
        look = arrivals.look(known)
        if look.complete:
            return look.complete
        if not has_said and time.monotonic() - begun >= SILENT_SECONDS:
            has_said = True
            some = "; ".join(f"{name} {why}" for name, why in look.waits_for[:NAMED])
            more = f" and {len(look.waits_for) - NAMED} more" if len(look.waits_for) > NAMED else ""
            say(f"waiting for files in {arrivals.folder}{f': {some}{more}' if some else ''}")
        time.sleep(LOOK_SECONDS)
    return ()


def places_known(workflow: Workflow, run_dir: Path | None) -> set[str]:
    """Places of the training files in a run's newest commit; empty without a commit. `run_dir`: default runs/NAME."""
    begun = begun_of(run_dir or Path("runs") / workflow.name)
    return {place_of(name, workflow.data.root) for name, _ in begun.files("train")}
