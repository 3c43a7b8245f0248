"""Durable files: a file appears under its name whole and durable or not at all, whenever a run is
killed, and checksums prove that what is read back is what was written."""

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
def replacing(path: Path, through: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that becomes `path` at the end, its bytes and its name durable. `through`: the
    temporary file's folder, on the same disk (default: that of `path`).

    Every attempt has a temporary name of its own, since Dask may run a task twice at once: the last one wins, with the
    same bytes. After an exception the temporary file is removed, if the disk allows it. Raises OSError if the disk
    fails or is full.
    """
    files = Files()
    partial = (through or path.parent) / f"{path.name}.{uuid.uuid4().hex}.partial"
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
    """Checksum of the content so far of a file that is being written."""
    file.flush()
    return checksum_of(Path(file.name))


def write_sealed(path: Path, content: Strict) -> None:
    """Write a line of JSON and one with its checksum; durable when this returns."""
    line = json.dumps(content.model_dump()).encode()
    with replacing(path) as file:
        file.write(line + f"\n{checksum(line)}\n".encode())


def read_sealed(path: Path, kind: type[T]) -> T:
    """Read what `write_sealed` wrote. Raises ValueError if the file is not as it was written."""
    line, _, seal = path.read_bytes().partition(b"\n")
    if seal != f"{checksum(line)}\n".encode():
        raise ValueError(f"{path}: is damaged: its checksum does not match its content")
    return kind.model_validate_json(line)


def size_of(path: Path) -> int | None:
    """Bytes of a regular file; None if there is no such file, or it is a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def has_checksum(path: Path, digest: str) -> bool:
    """True if the path is a regular file, not a link, with this checksum."""
    return size_of(path) is not None and checksum_of(path) == digest


def is_whole(path: Path) -> bool:
    """True if the file is a zip file whose members all match their checksums."""
    try:
        with zipfile.ZipFile(path) as members:
            return members.testzip() is None
    except Exception:
        # For a damaged file zipfile raises a dozen kinds of exceptions.
        return False


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turn any exception raised while reading one of our own files into a ValueError that names the file. MemoryError
    and OSError pass unchanged."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise ValueError(f"{path}: is damaged ({error}); the same command makes it again") from error
