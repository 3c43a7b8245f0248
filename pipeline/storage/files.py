"""How anything durable gets onto the disk. Every call to the system is made through `Files.system`, so that tests can
make each of them fail, stop short, or be the last one before the power goes."""

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
    """A file is not what a commit says of it. Says which file, what is wrong, and how to find out more."""


class Files:
    """Durable files: what is written is a new file or replaces one under its name; nothing is written in place."""

    system: Any = os

    def __init__(self, cached: bool = True) -> None:
        """`cached`: whether what was written may stay in the page cache."""
        self._cached = cached

    def write(self, path: Path, buffers: Sequence[Any]) -> str:
        """A new file of these buffers, its bytes on the disk when this returns (its name: after `sync_folder`).

        Returns the file's checksum. OSError: it exists, or the disk failed or is full; a failed fsync is not repeated.
        """
        system, digest = self.system, xxhash.xxh3_64()
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            for buffer in buffers:
                left = memoryview(buffer)
                left = left.cast("B") if left.nbytes else memoryview(b"")
                digest.update(left)
                while left:
                    if not (written := system.write(descriptor, left)):
                        raise OSError(errno.EIO, "nothing was written", str(path))
                    left = left[written:]
            system.fsync(descriptor)
            if not self._cached:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return digest.hexdigest()

    @contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        """A descriptor, closed afterwards. An OSError names the path, whichever call it came from."""
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
        """The file with this content instead of what it held, all or nothing, and durable. Returns its checksum."""
        partial = path.with_name(f"{path.name}.partial")
        if os.path.lexists(partial):
            self.remove(partial)
        checksum = self.write(partial, buffers)
        self.system.rename(partial, path)
        self.sync_folder(path.parent)
        return checksum

    def sync_folder(self, folder: Path) -> None:
        """Make durable which names the folder holds."""
        with self._opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            self.system.fsync(descriptor)

    def make_folder(self, folder: Path) -> None:
        """The folder and those above it, where they are not there yet; their names are durable afterwards, also that of
        a folder which an earlier process had no time to make so."""
        if not folder.is_dir():
            if not folder.parent.is_dir():
                self.make_folder(folder.parent)
            # Another worker may make the folder of a table that both have shards of.
            with suppress(FileExistsError):
                self.system.mkdir(folder)
        self.sync_folder(folder.parent)

    def remove(self, path: Path) -> None:
        self.system.unlink(path)

    def reserve(self, path: Path, num_bytes: int) -> None:
        """A file that takes so much space of the disk, and holds nothing."""
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW) as descriptor:
            self.system.posix_fallocate(descriptor, 0, max(1, num_bytes))


def refuse_links(folders: Iterable[Path]) -> None:
    """ValueError: one of these is a symbolic link, so that whatever is deleted in it lies elsewhere."""
    if link := next((folder for folder in folders if folder.is_symlink()), None):
        raise ValueError(
            f"{link} is a symbolic link (to {os.readlink(link)}), and a run deletes files there that no commit names: "
            "put the folder itself in its place; only the run directory as a whole may be a link"
        )


def checksum_of(path: Path, piece_bytes: int = 1 << 20) -> str:
    """The checksum of a file as it is now: XXH3, 64 bits, in hexadecimal digits."""
    digest = xxhash.xxh3_64()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(piece_bytes):
            digest.update(piece)
    return digest.hexdigest()


def checksum(*buffers: Any) -> str:
    """Return the checksum of a file with these buffers."""
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()


def tensors(arrays: Mapping[str, Array]) -> list[Any]:
    """The buffers of a safetensors file of these arrays. The arrays are not copied, as the format's library would."""
    header: dict[str, Any] = {}
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
