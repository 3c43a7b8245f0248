"""Checks shared by the commands that show a run: of its folder, and of optional packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import refuse_remote
from pipeline.monitor.live.lines import LIVE


def check_run(run_dir: Path) -> None:
    """Raises ValueError, with advice, if a folder has no live.jsonl."""
    refuse_remote("the run", run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir}: there is no such folder; name the folder of a run, such as runs/quickstart")
    if (run_dir / LIVE).is_file():
        return
    if (run_dir / "commits").is_dir():
        raise ValueError(f"{run_dir} has no {LIVE}, so it cannot be shown; `pipeline runs {run_dir}` has its metrics")
    raise ValueError(f"{run_dir} holds no run: it has no {LIVE}; name the folder that a run has written")


def check_extra(package: str, extra: str) -> None:
    """Raises ValueError, with the command that installs the extra, if a package is not installed."""
    if find_spec(package) is None:
        raise ValueError(f"the package {package} is not installed: pip install 'ctr-pipeline[{extra}]'")
