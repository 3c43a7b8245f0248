"""Moving files and folders aside for --fresh: nothing is deleted, and a message gives the new name."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from pipeline.messages.sizes import format_size_up

WAYS_OUT = "--fresh moves it aside, --out names another folder"
"""End of a message about a folder that contains something else."""


def move_aside(path: Path) -> str:
    """Rename a file or folder to the first free name of PATH.1, PATH.2, ... Returns a line with the new name, the size
    on disk, and the command that deletes it."""
    names = (path.with_name(f"{path.name}.{n}") for n in range(1, 1 << 20))
    moved = next(other for other in names if not os.path.lexists(other))
    path.rename(moved)
    blocks = os.lstat(moved).st_blocks
    blocks += sum(os.lstat(Path(at) / name).st_blocks for at, _, names in os.walk(moved) for name in names)
    what = f"what was in {path}" if moved.is_dir() else str(path)
    size, command = format_size_up(512 * blocks), "rm -r" if moved.is_dir() else "rm"
    return f"--fresh: {what} is now {moved} ({size}); to delete it: {command} {shlex.quote(str(moved))}"


def move_output_aside(out: Path, run_dir: Path) -> str | None:
    """Move an output folder aside (see `move_aside`); returns None if it is missing or empty. Raises ValueError if it
    is not a folder, or if it contains the run from which the output is made."""
    if run_dir.resolve().is_relative_to(out.resolve()):
        raise ValueError(f"--fresh: {out} holds the run {run_dir}, which would be moved, too; name another --out")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder; name another place with --out")
    return move_aside(out) if out.exists() and any(out.iterdir()) else None
