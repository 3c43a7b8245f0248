"""Durable files. Whenever a run is killed, a file appears under its name complete and durable, or not at all. Checksums
prove that the content read is the content written. All JSON files with a checksum are sealed here."""

from __future__ import annotations

import json
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from pipeline.settings import Strict, read_json
from pipeline.storage.files import Files, checksum, checksum_of

T = TypeVar("T", bound=Strict)


class Seal(NamedTuple):
    """Form of a file that contains a JSON text and its checksum: the bytes before and after the text. `%s` marks
    the checksum."""

    before: bytes
    after: bytes

    def close(self, text: bytes) -> bytes:
        """Return the content of the file with this text."""
        digest = checksum(text).encode()
        return b"".join((self.before.replace(b"%s", digest), text, self.after.replace(b"%s", digest)))

    def open(self, content: bytes) -> bytes:
        """Return the text in a file's content. Raises ValueError if the content has changed since it was written."""
        begin, end = (len(part.replace(b"%s", bytes(16))) for part in self)
        text = content[begin : len(content) - end]
        if self.close(text) != content:
            raise ValueError("its checksum is wrong")
        return text


RECORD = Seal(b"", b"\n%s\n")
"""Form of `write_sealed`: a line with the text, then a line with its checksum."""


def own_checksum(values: Mapping[str, Any]) -> str:
    """Checksum of all values of a JSON object except `checksum`, where the object stores it."""
    return checksum(json.dumps({name: value for name, value in values.items() if name != "checksum"}).encode())


@contextmanager
def replacing(path: Path, through: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that finally becomes `path`, with durable content and name. `through`: folder
    of the temporary file, on the same disk (default: that of `path`).

    Each attempt has a unique temporary name because Dask may run a task twice at once; the last one wins, with the same
    bytes. After an exception the temporary file is removed, if the disk allows it. Raises OSError if the disk fails or
    is full.
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


def write_sealed(path: Path, content: Strict) -> None:
    """Write values as JSON with a checksum; durable when this returns."""
    with replacing(path) as file:
        file.write(RECORD.close(json.dumps(content.model_dump()).encode()))


def read_sealed(path: Path, kind: type[T]) -> T:
    """Read what `write_sealed` wrote. Raises ValueError if the file has changed since it was written."""
    try:
        return read_json(kind, RECORD.open(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def size_of(path: Path) -> int | None:
    """Size of a regular file in bytes; None if there is no such file or it is a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def has_checksum(path: Path, digest: str) -> bool:
    """True if the path is a regular file, not a link, with this checksum."""
    return size_of(path) is not None and checksum_of(path) == digest
