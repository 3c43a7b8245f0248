"""Kernels of all hot operations, one file per operation: plain reference, CPU kernel and CUDA kernel side by side.

CPU kernels run without the GIL. All kernels write into arrays of the caller; they are compiled once and cached on disk.
The memory that holds an operation's arrays decides where it runs (`launch.on_host`). Fastmath is off: it lets the
compiler choose the order of additions, which changes the bits of a result.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from numba import config, cuda, njit


def digest_of_sources() -> str:
    """Digest of the sources of all kernels. A compiled kernel contains functions of other files, too, but Numba checks
    only its own file for changes."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


CHECKS_BOUNDS = os.environ.get("PIPELINE_CHECK_BOUNDS") == "1"
"""True if CPU kernels raise IndexError instead of using memory outside of an array: for tests, as it takes time."""

if not config.CACHE_DIR:
    config.CACHE_DIR = str(Path(__file__).parent / "__pycache__" / digest_of_sources())
if CHECKS_BOUNDS:
    # Numba would load what was compiled without checks.
    config.CACHE_DIR = str(Path(config.CACHE_DIR) / "bounds")

BLOCK_THREADS = 256
BLOCKS_AT_ONCE = 4
"""Number of blocks that a multiprocessor of a GPU runs at once at least, so that enough rows are on their way while
others wait for memory. It has 65,536 registers: the compiler gives a thread at most 64."""


def gpu_blocks_of(threads: int, at_once: int) -> Any:
    """Return a decorator of CUDA kernels with blocks of `threads` threads, of which a multiprocessor runs `at_once`."""
    # The simulator does not support launch bounds.
    bounds = {} if config.ENABLE_CUDASIM else {"launch_bounds": (threads, at_once)}
    return cuda.jit(cache=True, **bounds)


cpu = njit(nogil=True, cache=True, error_model="numpy", boundscheck=CHECKS_BOUNDS)
gpu = gpu_blocks_of(BLOCK_THREADS, BLOCKS_AT_ONCE)
