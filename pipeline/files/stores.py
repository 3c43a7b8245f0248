"""Places of files, on a local disk or in an object store, through pyarrow's file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

SCHEMES = ("s3", "gs", "abfs", "hdfs")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a folder."""

    place: str
    """Absolute local path, or URI."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes if a file is replaced or written again."""

    size: int
    """Bytes."""
    version: str
    """Device, inode and modification time of a local file; ETag or version of an object."""


def is_remote(place: str) -> bool:
    """True for a URI of an object store."""
    found = _URI.match(place)
    return found is not None and found[1] in SCHEMES


def file_system(place: str) -> tuple[pafs.FileSystem, str]:
    """File system of a place, and the path in it."""
    if is_remote(place):
        return pafs.FileSystem.from_uri(place)
    return pafs.LocalFileSystem(), place


def files_below(place: str) -> Iterator[Entry]:
    """Every file below a folder, at all levels, in any order."""
    system, path = file_system(place)
    for found in system.get_file_info(pafs.FileSelector(path, recursive=True)):
        if found.type == pafs.FileType.File:
            yield Entry(f"{place.rstrip('/')}/{found.path[len(path.rstrip('/')) + 1 :]}", found.size)


def open_to_read(place: str) -> pa.NativeFile:
    """Open a file for random access."""
    system, path = file_system(place)
    return system.open_input_file(path)


def stamp_of(place: str) -> Stamp:
    """Raises OSError if the file cannot be found."""
    if not is_remote(place):
        found = os.stat(place)
        return Stamp(found.st_size, f"{found.st_dev} {found.st_ino} {found.st_mtime_ns}")
    system, path = file_system(place)
    info = system.get_file_info(path)
    if info.type != pafs.FileType.File:
        raise FileNotFoundError(place)
    return Stamp(info.size, str(info.mtime_ns))
