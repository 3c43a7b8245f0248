"""Every hot operation: one file each, the plain reference, the CPU kernel and the CUDA kernel side by side.

CPU kernels run without the GIL, all write into arrays of the caller, and are compiled once and cached on disk. Where
an operation runs is decided by where its arrays lie (`launch.on_host`). No fastmath: it would change the bits of a
result with the order in which a compiler finds it convenient to add.
"""

import hashlib
from pathlib import Path
from typing import Any

from numba import config, cuda, njit


def digest_of_sources() -> str:
    """Return a digest of the sources of all kernels. A compiled one holds what it calls, also from other files, and
    Numba looks at its own alone."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if not config.CACHE_DIR:
    config.CACHE_DIR = str(Path(__file__).parent / "__pycache__" / digest_of_sources())

cpu = njit(nogil=True, cache=True, error_model="numpy")
gpu = cuda.jit(cache=True)


def gpu_blocks_of(threads: int) -> Any:
    """`gpu` for a kernel of so large blocks that a compiler which did not know could give it too many registers."""
    # The simulator knows no bounds.
    return gpu if config.ENABLE_CUDASIM else cuda.jit(cache=True, launch_bounds=threads)
