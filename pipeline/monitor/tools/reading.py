"""The run directory as an argument of a command, and its live.jsonl."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.errors import refuse_remote
from pipeline.monitor.live.lines import LIVE


def run_arguments(name: str, text: str) -> argparse.ArgumentParser:
    """Parser of a command whose first argument is a run directory."""
    parser = argparse.ArgumentParser(prog=f"python -m pipeline {name}", description=text)
    parser.add_argument("run", type=Path, help="folder of a run")
    return parser


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
