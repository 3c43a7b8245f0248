"""The live.jsonl of a run directory, and the errors of commands that read it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import error_text, refuse_remote
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.live.lines import LIVE


def check_live(run_dir: Path) -> None:
    """Raises ValueError, with what to do, if a folder has no live.jsonl."""
    refuse_remote("the run", run_dir)
    if (run_dir / LIVE).is_file():
        return
    if not (run_dir / "commits").is_dir():
        raise ValueError(f"{run_dir} holds no run: it has no folder `commits`; name the folder that a run has written")
    raise ValueError(
        f"{run_dir} has no {LIVE}: its training has not begun, or a version that wrote none did it; training that goes "
        "on from its last commit begins one"
    )


def check_extra(module: str, extra: str) -> None:
    """Raises ValueError, with the command that installs it, if a package is not there."""
    if find_spec(module) is None:
        raise ValueError(f"the package {module} is not installed: pip install 'ctr-pipeline[{extra}]'")


def read_run(run_dir: Path, read: Callable[[], str]) -> int:
    """Call `read`, print the line that it returns, and return the exit code: 0, 2 after an error that is told in a
    line, 130 after an interrupt."""
    try:
        check_live(run_dir)
        heed_interrupts()
        print(read())
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was read until then is written", file=sys.stderr)
        return 130
    return 0
