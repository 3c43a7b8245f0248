"""Training on files as they become complete: begin or resume, wait for files, extend the run with them, and wait again.

Nothing is kept of the wait itself. Which files were trained is in the run's commits, so after Ctrl-C or a power failure
the same command resumes: first with what the last commit has not finished, then with the files that it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from pipeline.arrivals.complete import Arrivals
from pipeline.arrivals.wait import LOOK_SECONDS, wait_for_files
from pipeline.driver.resume import begun_of
from pipeline.files.find import place_of
from pipeline.machine.signals import exit_code, on_signal
from pipeline.workflow import Workflow


def watch(
    train: Callable[[tuple[str, ...]], int], arrivals: Arrivals, known: Callable[[], Collection[str]],
    say: Callable[[str], None], look_seconds: float = LOOK_SECONDS,
) -> int:  # fmt: skip
    """Train until a signal comes or a training does not succeed, and return the exit code.

    `train`: extends the run with files and returns the exit code; without files, it begins or resumes the run. `known`:
    returns the places of the files that the run has.
    """
    code, given = train(()), set[str]()
    while not code:
        signals: list[str] = []
        with on_signal(signals.append):
            files = wait_for_files(arrivals, {*known(), *given}, say, lambda: bool(signals), look_seconds)  # noqa: B023
        if not files:
            say(f"stopped waiting for files in {arrivals.folder}: all that came is committed; the same command resumes")
            return exit_code(signals[0])
        say(f"{len(files)} new {'file' if len(files) == 1 else 'files'}: {files[0]}{' ...' if len(files) > 1 else ''}")
        code = train(files)
        given |= {*files}
    return code


def places_known(workflow: Workflow, run_dir: Path) -> set[str]:
    """Places of the training files of the newest commit of a run; none if there is no commit."""
    return {place_of(name, workflow.data.root) for name, _ in begun_of(run_dir).files("train")}


def known_of(workflow: Workflow, run_dir: Path | None) -> Callable[[], set[str]]:
    """Function that returns the places of the training files that a run has. `run_dir`: by default runs/NAME."""
    return partial(places_known, workflow, run_dir or Path("runs") / workflow.name)
