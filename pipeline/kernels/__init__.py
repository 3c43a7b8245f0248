"""Kernels of all hot operations, one file per operation: plain reference, CPU kernel and CUDA kernel side by side.

CPU kernels run without the GIL. All kernels write into arrays of the caller; they are compiled once and cached on disk.
The memory that holds an operation's arrays decides where it runs (`launch.on_host`). Fastmath is off: it lets the
compiler choose the order of additions, which changes the bits of a result.
"""

import hashlib
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


if not config.CACHE_DIR:
    config.CACHE_DIR = str(Path(__file__).parent / "__pycache__" / digest_of_sources())

cpu = njit(nogil=True, cache=True, error_model="numpy")
gpu = cuda.jit(cache=True)


def gpu_blocks_of(threads: int) -> Any:
    """Return a decorator like `gpu` for kernels with blocks of `threads` threads, so large that the compiler must limit
    the registers per thread."""
    # The simulator does not support launch bounds.
    return gpu if config.ENABLE_CUDASIM else cuda.jit(cache=True, launch_bounds=threads)
