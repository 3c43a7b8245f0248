"""Moving a folder aside for --fresh: nothing is deleted, and the user is told what is left and where."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def move_aside(folder: Path) -> str:
    """Rename a folder to the first free FOLDER.1, FOLDER.2, ... Returns a line with its new name, its size on the disk,
    and the command that deletes it."""
    beside = (folder.with_name(f"{folder.name}.{n}") for n in range(1, 1 << 20))
    moved = next(path for path in beside if not os.path.lexists(path))
    folder.rename(moved)
    blocks = sum(os.lstat(Path(at) / name).st_blocks for at, _, names in os.walk(moved) for name in names)
    mib = blocks * 512 / (1 << 20)
    size = f"{mib / 1024:,.1f} GiB" if mib >= 1024 else f"{mib:,.1f} MiB"
    return f"--fresh: what was in {folder} is now {moved} ({size}); to delete it: rm -r {shlex.quote(str(moved))}"
