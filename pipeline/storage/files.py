"""Durable writes to disk. Every system call goes through `Files.system`, so that tests can make any call fail, write
only a part, or be the last one before a power failure."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pipeline.records import Array

SAFETENSORS_NAMES = {"f": "F", "i": "I", "u": "U", "b": "BOOL"}


class Damaged(OSError):
    """Raised if a file differs from what a commit recorded. Names the file, the fault, and how to learn more."""


class Files:
    """Writer of durable files. Each write creates a file or atomically replaces one. No file is modified in place,
    except that records are appended to."""

    system: Any = os

    def __init__(self, cached: bool = True) -> None:
        """`cached`: True if written files may stay in the page cache."""
        self._cached = cached

    def write(self, path: Path, buffers: Iterable[Any]) -> str:
        """Write these buffers to a new file and return its checksum. The content is on disk on return; the name is
        durable after `sync_folder`.

        Raises OSError if the file exists, or if the disk fails or is full. A failed fsync is not retried.
        """
        digest = xxhash.xxh3_64()
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            for buffer in buffers:
                left = memoryview(buffer)
                left = left.cast("B") if left.nbytes else memoryview(b"")
                digest.update(left)
                self._write(descriptor, left, path)
            self.system.fsync(descriptor)
            if not self._cached:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return digest.hexdigest()

    def _write(self, descriptor: int, left: memoryview, path: Path) -> None:
        while left:
            if not (written := self.system.write(descriptor, left)):
                raise OSError(errno.EIO, "nothing was written", str(path))
            left = left[written:]

    def append(self, path: Path, content: bytes, durable: bool) -> None:
        """Append to a file, creating it if necessary. `durable`: True if everything must be on disk on return; if
        False, it may get there later or in part. Raises OSError like `write`."""
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW) as descriptor:
            self._write(descriptor, memoryview(content), path)
            if durable:
                self.system.fsync(descriptor)

    @contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        """Open the path and close its descriptor afterwards. Any OSError raised in between names the path."""
        try:
            descriptor = self.system.open(path, flags | os.O_CLOEXEC, 0o644)
            try:
                yield descriptor
            finally:
                self.system.close(descriptor)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def replace(self, path: Path, buffers: Sequence[Any]) -> str:
        """Replace the file's content atomically and durably. Returns the checksum of the new content."""
        partial = path.with_name(f"{path.name}.partial")
        if os.path.lexists(partial):
            self.remove(partial)
        checksum = self.write(partial, buffers)
        self.system.rename(partial, path)
        self.sync_folder(path.parent)
        return checksum

    def sync_folder(self, folder: Path) -> None:
        """Make the names in the folder durable."""
        with self._opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            self.system.fsync(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Create the folder and its missing parents, and make their names durable. The name of an existing folder is
        also synced: an earlier process may have ended before it did so."""
        if not folder.is_dir():
            if not folder.parent.is_dir():
                self.make_folder(folder.parent)
            # Another worker with shards of the same table may create the folder at the same time.
            with suppress(FileExistsError):
                self.system.mkdir(folder)
        self.sync_folder(folder.parent)

    def remove(self, path: Path) -> None:
        self.system.unlink(path)

    def reserve(self, path: Path, num_bytes: int) -> None:
        """Create a file without content that occupies `num_bytes` of disk space."""
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW) as descriptor:
            self.system.posix_fallocate(descriptor, 0, max(1, num_bytes))


def refuse_links(folders: Iterable[Path]) -> None:
    """Raise ValueError if one of the folders is a symbolic link: deleting files in it would delete them elsewhere."""
    if link := next((folder for folder in folders if folder.is_symlink()), None):
        raise ValueError(
            f"{link} is a symbolic link (to {os.readlink(link)}), and a run deletes files there that no commit names: "
            "replace the link with the folder itself; only the run directory as a whole may be a link"
        )


def checksum_of(path: Path, piece_bytes: int = 1 << 20) -> str:
    """Checksum of the file's current content: 64-bit XXH3 in hexadecimal digits."""
    digest = xxhash.xxh3_64()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(piece_bytes):
            digest.update(piece)
    return digest.hexdigest()


def checksum(*buffers: Any) -> str:
    """Checksum of a file with the content of these buffers."""
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()


def tensors(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> list[Any]:
    """Buffers of a safetensors file with these arrays. Unlike the safetensors library, this does not copy them."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    contents = [np.ascontiguousarray(array) for array in arrays.values()]
    begin = 0
    for name, array, content in zip(arrays, arrays.values(), contents, strict=True):
        kind = SAFETENSORS_NAMES[array.dtype.kind]
        dtype = kind if kind == "BOOL" else f"{kind}{8 * array.dtype.itemsize}"
        end = begin + content.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(c.reshape(-1).view(np.uint8).data for c in contents if c.size)]
