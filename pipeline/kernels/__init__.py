"""Every hot operation: one file each, the plain reference and the CPU kernel side by side.

Kernels run without the GIL, write into arrays of the caller, and are compiled once and cached on disk. No fastmath:
it would change the bits of a result with the order in which a compiler finds it convenient to add.
"""

from numba import njit

cpu = njit(nogil=True, cache=True, error_model="numpy")
