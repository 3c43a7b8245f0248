"""What the commands that show a run share: the check of its folder, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import error_text, refuse_remote
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.live.lines import LIVE

SHOWN = (LIVE, "result.json", "metrics.jsonl")
"""Files of a run from which a report can be made."""


def run_arguments(name: str, text: str | None, follows: bool = False) -> argparse.ArgumentParser:
    """Parser of a command whose first argument is a run directory. `follows`: it has the option --follow."""
    parser = argparse.ArgumentParser(prog=f"python -m pipeline {name}", description=text)
    parser.add_argument("run", type=Path, help="folder of a run")
    if follows:
        parser.add_argument("--follow", action="store_true", help="go on until the session ends, or until Ctrl-C")
    return parser


def check_run(run_dir: Path, files: tuple[str, ...] = (LIVE,)) -> None:
    """Raises ValueError, with what to do, if a folder has none of these files of a run."""
    refuse_remote("the run", run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir}: there is no such folder; name the folder of a run, such as runs/quickstart")
    if any((run_dir / name).is_file() for name in files):
        return
    none = f"no {' and no '.join(files)}"
    if not (run_dir / "commits").is_dir():
        raise ValueError(f"{run_dir} holds no run: it has {none}; name the folder that a run has written")
    raise ValueError(
        f"{run_dir} has {none}: its training has not begun, or an older version trained it; "
        f"`pipeline report {run_dir}` shows what other files have"
    )


def check_extra(package: str) -> None:
    """Raises ValueError, with the command that installs it, if a package is not installed."""
    if find_spec(package) is None:
        raise ValueError(f"the package {package} is not installed: pip install -e 'CLONE[{package}]'")


def run_command(work: Callable[[], str], interrupted: str = "interrupted: nothing was written") -> int:
    """Call `work`, print the line that it returns, if any, and return the exit code: 0, 2 after an error, which is
    printed in a line, or 130 after an interrupt, which prints `interrupted`."""
    try:
        heed_interrupts()
        if line := work():
            print(line)
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    return 0
