"""Names of the files in the output's folders while it is being made. Files with other names are neither read nor
removed, and links to folders are not followed. All names except those of the splits start with `_` or `.`, which data
set readers (pyarrow, pandas, Spark) skip, so the output can be read as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.settings import SPLITS
from pipeline.storage.files import Files

KEPT = ".prepare"
"""Folder in the output for the state of the preparation. When the output is finished, only the command remains."""
COMMAND, MANIFEST, STUB, STATISTICS = "command.json", "_prepared.json", "_workflow.py", "_statistics.json"
WRITE = "write"
"""Folder in KEPT with the records of finished parts."""
SORTED = "events"
"""Folder in KEPT with the sorted events that histories are built from."""
PART = r"part-[0-9]{4,}-[0-9]{5,}"
NAMES = {
    ".": "|".join(map(re.escape, (MANIFEST, STUB, STATISTICS))),
    **dict.fromkeys(SPLITS, rf"{PART}\.parquet"),
    KEPT: f"{re.escape(COMMAND)}|stop",
    f"{KEPT}/{WRITE}": rf"{PART}\.json",
    f"{KEPT}/{SORTED}": r"items\.arrow|frames\.arrow|done\.json|duckdb_temp_.+",
}
"""Pattern of the file names in each folder."""
PARTIAL = r"(\.[0-9a-f]{32})?\.partial"
"""Suffix of temporary names."""


def check_folders(out: Path) -> None:
    """Raises ValueError if a folder within the output is a link. The output itself may be a link."""
    for path in (out / name for name in NAMES if name != "."):
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link, and may lead to files that are not the output's; replace it with a folder, "
                "or make the output itself the link"
            )


def named(folder: Path, names: str) -> Iterator[Path]:
    """Sorted paths in a folder with names that match the pattern; none if the folder does not exist."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return (path for path in paths if re.fullmatch(names, path.name))


def remove_partials(out: Path) -> None:
    """Remove temporary files left by a killed process."""
    for folder, names in NAMES.items():
        remove(out / folder, f"({names}){PARTIAL}")


def remove_kept(out: Path) -> None:
    """Remove the state in KEPT, except the command, and the folders that are then empty."""
    for folder, names in NAMES.items():
        if folder.startswith(f"{KEPT}/"):
            remove(out / folder, f"({names})({PARTIAL})?")
            with suppress(OSError):
                (out / folder).rmdir()


def remove(folder: Path, names: str) -> None:
    if not folder.is_symlink():
        for path in named(folder, names):
            if path.is_symlink() or not path.is_dir():
                Files().remove(path)
