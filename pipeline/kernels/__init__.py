"""Every hot operation: one file each, the plain reference, the CPU kernel and the CUDA kernel side by side.

CPU kernels run without the GIL, all write into arrays of the caller, and are compiled once and cached on disk. Where
an operation runs is decided by where its arrays lie (`launch.on_host`). No fastmath: it would change the bits of a
result with the order in which a compiler finds it convenient to add.
"""

from typing import Any

from numba import config, cuda, njit

cpu = njit(nogil=True, cache=True, error_model="numpy")
gpu = cuda.jit(cache=True)


def gpu_blocks_of(threads: int) -> Any:
    """`gpu` for a kernel of so large blocks that a compiler which did not know could give it too many registers."""
    # The simulator knows no bounds.
    return gpu if config.ENABLE_CUDASIM else cuda.jit(cache=True, launch_bounds=threads)
