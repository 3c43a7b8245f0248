"""Memory and CPU limits of this process, including those of its control groups (version 2), which limit containers,
systemd slices and jobs of batch systems; the memory that it takes; and allocation of large arrays that are reused.

Each function for a limit takes the root of the file system that it reads. A file that is missing or unreadable sets no
limit.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path("/")


def memory(root: Path = ROOT) -> int:
    """Maximum bytes of RAM that this process may use."""
    return min(memory_limits(root).values())


def memory_limits(root: Path = ROOT) -> dict[int, int]:
    """Bytes of RAM by owner. Key 0 is the whole machine; any other key is the inode of a control group, and the group's
    processes share the bytes."""
    limits = {0: _machine(root)["MemTotal"]}
    for group in _groups(root):
        if (limit := _number(group / "memory.max")) is not None and limit < limits[0]:
            limits[group.stat().st_ino] = limit
    return limits


def free_memory(root: Path = ROOT) -> int:
    """Bytes of RAM available to this process. Inactive page cache of a control group counts as free."""
    free = [_machine(root)["MemAvailable"]]
    for group in _groups(root):
        if (limit := _number(group / "memory.max")) is not None:
            unused = _counts(group / "memory.stat").get("inactive_file", 0)
            used = _number(group / "memory.current") or 0
            free.append(limit - max(0, used - unused))
    return max(0, min(free))


def cpus(root: Path = ROOT, allowed: Collection[int] | None = None) -> int:
    """Number of CPUs that this process may keep busy; a fraction counts as one. `allowed`: CPUs to run on
    instead of those that the system allows."""
    maximum = [len(os.sched_getaffinity(0) if allowed is None else allowed)]
    for group in _groups(root):
        quota, period, *_ = [*_text(group / "cpu.max").split(), "", ""]
        # "max" is no limit.
        if quota.isdecimal() and period.isdecimal():
            maximum.append(-(-int(quota) // int(period)))
    return max(1, min(maximum))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folder of each control group of this process, including visible ancestors."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    own = PurePosixPath(next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/"))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        top, mounted = map(_unescaped, before.split(" ")[3:5])
        if not after.startswith("cgroup2 "):
            continue
        # In a container, the path may not exist below the mount; then the mount itself is the container's group.
        inside = own.relative_to(top).parts if own.is_relative_to(top) and ".." not in own.parts else ()
        group = root / mounted.lstrip("/")
        yield group
        for name in inside:
            group /= name
            yield group


def _unescaped(path: str) -> str:
    """Decode a path of mountinfo, in which blanks, tabs, newlines and backslashes are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _machine(root: Path) -> dict[str, int]:
    """Entries of /proc/meminfo in bytes, by name."""
    return {name.rstrip(":"): 1024 * count for name, count in _counts(root / "proc/meminfo").items()}


def _counts(file: Path) -> dict[str, int]:
    """Parse a file whose lines are a name and a number."""
    return {words[0]: int(words[1]) for line in _text(file).splitlines() if len(words := line.split()) > 1}


def _number(file: Path) -> int | None:
    """Number in a file; None if the file is missing or contains something else, such as "max"."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape")
    except OSError:
        return ""


ALIGNMENT = 64
"""Alignment in bytes of every array that a model reads: the bits of matrix libraries' results depend on the
alignment."""


MAPPED_BYTES = 32 << 20
"""Minimum size in bytes of arrays that are mapped with mmap: their memory returns to the system when they are freed,
despite `keep_freed_memory`."""


def aligned_empty(shape: int | tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> NDArray[Any]:
    """Allocate an uninitialized C-contiguous array that starts at a multiple of `alignment` bytes. Raises MemoryError
    if there is too little memory."""
    shape = (shape,) if isinstance(shape, int) else shape
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = _mapped(num_bytes) if num_bytes >= MAPPED_BYTES else np.empty(num_bytes + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + num_bytes].view(dtype).reshape(shape)


def _mapped(num_bytes: int) -> NDArray[np.uint8]:
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes:,} bytes cannot be allocated") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Use huge pages, as NumPy does for its arrays. The kernel may have been built without them.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def resident_bytes() -> int:
    """Bytes of RAM that this process currently uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
