"""The names in an output's folders while it is made. Whatever else lies there is neither read nor removed, and nothing
is done behind a link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.data.files import SPLITS
from pipeline.storage.files import Files

KEPT = ".prepare"
"""The folder in the output that says what is done; but for the command it goes when all is."""
COMMAND, MANIFEST, STUB = "command.json", "prepared.json", "workflow.py"
COUNT, COUNTS, WRITE, UNIQUES = "count", "counts", "write", "uniques"
"""Folders in KEPT: records of two steps, and what they save of each part."""
VOCABULARY = "vocabulary"
PART = r"part-[0-9]{4,}-[0-9]{5,}"
NAMES = {
    ".": "|".join(map(re.escape, (MANIFEST, STUB))),
    **dict.fromkeys(SPLITS, rf"{PART}\.parquet"),
    VOCABULARY: r".+\.parquet",
    KEPT: f"{re.escape(COMMAND)}|stop",
    f"{KEPT}/{COUNT}": rf"{PART}\.json",
    f"{KEPT}/{COUNTS}": rf"{PART}\.counts|.+\.merged",
    f"{KEPT}/{WRITE}": rf"{PART}\.json",
    f"{KEPT}/{UNIQUES}": rf"{PART}\.npz|folded\.npz",
}
"""What the files of each folder may be called."""
MERGING, RUN = r".+\.merging", r"[0-9]+-[0-9]{6}\.runs"
"""Folders in COUNTS, and what they hold."""
PARTIAL = r"(\.[0-9a-f]{32})?\.partial"
"""How temporary names end."""


def check_folders(out: Path) -> None:
    """ValueError: a folder of the output is a link. The output itself may be one."""
    ours = [*(out / name for name in NAMES if name != "."), *named(out / KEPT / COUNTS, MERGING)]
    for path in ours:
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link, and what it leads to may be another's; put a folder in its place, "
                "or let the output itself be the link"
            )


def named(folder: Path, names: str) -> Iterator[Path]:
    """Yield what is called one of these in a folder, which may be missing, in order."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return (path for path in paths if re.fullmatch(names, path.name))


def remove_partials(out: Path) -> None:
    """Remove what a killed process left under temporary names."""
    for folder, names in NAMES.items():
        remove(out / folder, f"({names}){PARTIAL}")


def remove_kept(out: Path) -> None:
    """All that is kept but the command, and the folders that are empty then."""
    for folder, names in NAMES.items():
        if folder.startswith(f"{KEPT}/"):
            for merging in named(out / folder, MERGING):
                remove_folder(merging)
            remove_folder(out / folder, f"({names})({PARTIAL})?")
    (out / KEPT / "stop").unlink(missing_ok=True)


def remove_folder(folder: Path, names: str = f"{RUN}({PARTIAL})?") -> None:
    """Its files of these names, and then the folder if it holds nothing else."""
    remove(folder, names)
    with suppress(OSError):
        folder.rmdir()


def remove(folder: Path, names: str) -> None:
    if not folder.is_symlink():
        for path in named(folder, names):
            if path.is_symlink() or not path.is_dir():
                Files().remove(path)
