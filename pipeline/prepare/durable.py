"""Files of the preparation appear under their names whole and durable, or not at all, wherever a run is killed; and
what is read back of them is what was written."""

from __future__ import annotations

import json
import stat
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from pipeline.settings import Strict
from pipeline.storage.files import Files, checksum, checksum_of

T = TypeVar("T", bound=Strict)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which is `path` afterwards: its bytes and its name are on the disk.

    Every attempt has a temporary name of its own, since Dask may run a task twice at once: whoever is last wins, with
    the same bytes. After an exception nothing of the attempt is left, where the disk lets it be removed. OSError: the
    disk failed or is full.
    """
    files = Files()
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            files.system.fsync(file.fileno())
        files.system.rename(partial, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno:
            error.filename = error.filename or str(path)
        with suppress(OSError):
            files.remove(partial)
        raise
    files.sync_folder(path.parent)


def checksum_so_far(file: BinaryIO) -> str:
    """Return the checksum of what was written to a file that is not there yet under its name."""
    file.flush()
    return checksum_of(Path(file.name))


def write_sealed(path: Path, content: Strict) -> None:
    """A line of JSON and one with its checksum, durable when this returns."""
    line = json.dumps(content.model_dump()).encode()
    with replacing(path) as file:
        file.write(line + f"\n{checksum(line)}\n".encode())


def read_sealed(path: Path, kind: type[T]) -> T:
    """ValueError: the file is not as it was written."""
    line, _, seal = path.read_bytes().partition(b"\n")
    if seal != f"{checksum(line)}\n".encode():
        raise ValueError(f"{path}: is damaged: its checksum is another than its content's")
    return kind.model_validate_json(line)


def size_of(path: Path) -> int | None:
    """None: it is no file, or a link to one."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def has_checksum(path: Path, digest: str) -> bool:
    """Return whether it is a file, no link to one, and as it was written."""
    return size_of(path) is not None and checksum_of(path) == digest


def is_whole(path: Path) -> bool:
    """Return whether every member of a zip file has its checksum."""
    try:
        with zipfile.ZipFile(path) as members:
            return members.testzip() is None
    except Exception:
        # Of what is no zip file any more, zipfile raises a dozen kinds of exceptions.
        return False


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Have whatever is raised while one of our own files is read be a ValueError that names it. MemoryError and OSError
    stay what they are."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise ValueError(f"{path}: is damaged ({error}); the same command makes it again") from error
