"""Training on files as they become complete: begin or resume, wait for files, extend the run with them, and wait again.

Nothing is kept of the wait itself. Which files were trained is in the run's commits, so after Ctrl-C or a power failure
the same command resumes: first with what the last commit has not finished, then with the files that it has not.
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
"""Time from one check of the folder to the next."""
SILENT_SECONDS = 60.0
"""Time after which a wait is reported."""
NAMED = 3
"""Maximum number of incomplete files that the report names."""


def watch(
    train: Callable[[tuple[str, ...]], int], arrivals: Arrivals, known: Callable[[], Collection[str]],
    say: Callable[[str], None],
) -> int:  # fmt: skip
    """Train until a signal comes or a training does not succeed, and return the exit code.

    `train`: extends the run with files and returns the exit code; without files, it begins or resumes the run. `known`:
    returns the places of the files that the run has.
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
    """Return the places of complete files that are not `known`, once there are some, in the order of names; none if
    `is_stopped` says so. `say` is called once if the wait takes more than a minute."""
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
    """Places of the training files of the newest commit of a run; none if there is no commit. `run_dir`: by default
    runs/NAME."""
    begun = begun_of(run_dir or Path("runs") / workflow.name)
    return {place_of(name, workflow.data.root) for name, _ in begun.files("train")}
