"""Kernels of all hot operations; those that belong together share a file: plain reference, CPU kernel and CUDA kernel
side by side.

CPU kernels run without the GIL. All kernels write into arrays that the caller passes. They are compiled once and cached
on disk. An operation runs where the memory of its arrays is (`launch.on_host`). Fastmath is off because it lets the
compiler reorder additions, which changes the bits of a result. Compiled loops do not check bounds, so kernels check the
sizes of their arrays at their entry (`need`).
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from numba import config, cuda, njit


def digest_of_sources() -> str:
    """Digest of the sources of all kernels. A compiled kernel also contains functions from other files, but Numba
    checks only the kernel's own file for changes."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


CHECKS_BOUNDS = os.environ.get("PIPELINE_CHECK_BOUNDS") == "1"
"""True if CPU kernels raise IndexError instead of accessing memory outside an array. Slow; used only in tests."""

if not config.CACHE_DIR:
    config.CACHE_DIR = str(Path(__file__).parent / "__pycache__" / digest_of_sources())
if CHECKS_BOUNDS:
    # Otherwise Numba would load the kernels that were compiled without checks.
    config.CACHE_DIR = str(Path(config.CACHE_DIR) / "bounds")

BLOCK_THREADS = 256
BLOCKS_AT_ONCE = 4
"""Minimum number of blocks that a GPU multiprocessor runs concurrently, so that enough loads are in flight to hide
memory latency. With 65,536 registers per multiprocessor, the compiler may use at most 64 per thread."""


def gpu_blocks_of(threads: int, at_once: int) -> Any:
    """Return a decorator for CUDA kernels with blocks of `threads` threads, `at_once` blocks per multiprocessor."""
    # The simulator does not support launch bounds.
    bounds = {} if config.ENABLE_CUDASIM else {"launch_bounds": (threads, at_once)}
    return cuda.jit(cache=True, **bounds)


cpu = njit(nogil=True, cache=True, error_model="numpy", boundscheck=CHECKS_BOUNDS)
gpu = gpu_blocks_of(BLOCK_THREADS, BLOCKS_AT_ONCE)


def need(room: int, used: int) -> None:
    """Raise IndexError, with both numbers, if a kernel would access more items than an array has: a bug in the caller.
    A slice beyond the end of an array has fewer items than its bounds suggest."""
    if room < used:
        raise IndexError("an array is too short for a kernel: number of items, number that it uses", room, used)


need_cpu = cpu(need)
"""`need` for compiled code. Calling it from Python is slower than calling `need`."""


@cpu
def need_index(index: int, room: int) -> None:
    """Raise IndexError, with both numbers, if the index is out of range. For code that computes addresses itself."""
    if index < 0 or index >= room:
        raise IndexError("an index of a kernel is out of range: index, and number of items", index, room)
