"""Files of the preparation appear under their names whole and durable, or not at all, wherever a run is killed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.storage.files import Files

PARTIAL = ".partial"
"""How the temporary names end. What a killed run left under them counts for nothing and may be removed."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which is `path` afterwards: its bytes and its name are on the disk.

    Every attempt has a temporary name of its own, since Dask may run a task twice at once: whoever is last wins, with
    the same bytes. After an exception nothing of the attempt is left. OSError: the disk failed or is full.
    """
    files = Files()
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            files.system.fsync(file.fileno())
        files.system.rename(partial, path)
    except BaseException:
        if partial.exists():
            files.remove(partial)
        raise
    files.sync_folder(path.parent)
