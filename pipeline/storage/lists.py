"""Long lists of commits, in files of their own: written once, named by their checksum, and shared by commits.

RUN_DIR/lists/0123456789abcdef.json   entries of a list, as JSON
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.storage.files import Damaged, Files, checksum

FOLDER = "lists"
DETAILS = "`pipeline verify RUN` says more, and --repair goes back to the newest commit that is intact"
NAMED = re.compile(rb'"([0-9a-f]{16})"')


def list_file(run_dir: Path, digest: str) -> Path:
    """Path of a list. Raises Damaged if `digest` is no checksum, as in a forged commit."""
    if not NAMED.fullmatch(f'"{digest}"'.encode()):
        raise Damaged(f"{str(digest)[:40]!r} is not the name of a list; {DETAILS}")
    return run_dir / FOLDER / f"{digest}.json"


def write_list(run_dir: Path, entries: Sequence[Any], files: Files) -> str:
    """Write a list durably, unless it is there. Returns its checksum."""
    content = json.dumps(entries).encode()
    path = list_file(run_dir, digest := checksum(content))
    if path.exists():
        files.sync_folder(path.parent)  # An earlier process may have been killed before it did.
    else:
        files.make_folder(path.parent)
        files.replace(path, [content])
    return digest


def read_list(run_dir: Path, digest: str) -> list[Any]:
    """Entries of a list. Raises Damaged if it is missing or was changed."""
    path = list_file(run_dir, digest)
    content = path.read_bytes() if path.is_file() else None
    if content is None or checksum(content) != digest:
        what = "is missing" if content is None else "its checksum is wrong"
        raise Damaged(f"{path}, which a commit names: {what}; {DETAILS}")
    return list(json.loads(content))


def remove_lists(run_dir: Path, manifests: Iterable[Path], files: Files) -> None:
    """Delete the lists that none of these manifests names."""
    if paths := [*(run_dir / FOLDER).glob("*.json*")]:
        named = {digest.decode() for path in manifests for digest in NAMED.findall(path.read_bytes())}
        for path in paths:
            if path.name.removesuffix(".json") not in named:
                files.remove(path)
