"""Arithmetic with the same bits on CPU and GPU.

A CUDA compiler may fuse a multiplication and an addition into one operation with a single rounding. `product` is always
rounded separately, as on the CPU. Sums, quotients and square roots are correctly rounded on both.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.cuda import libdevice
from numba.extending import overload

from pipeline.kernels import cpu


def product(a: Any, b: Any) -> Any:
    """a * b in float32, or in float64 if either is."""
    return a * b


@overload(product, target="cpu")
def _product_on_cpu(a: Any, b: Any) -> Any:
    # Numba requires the same annotations on both functions.
    def rounded(a: Any, b: Any) -> Any:
        return a * b

    return rounded


@overload(product, target="cuda")
def _product_on_gpu(a: Any, b: Any) -> Any:
    if types.float64 in (a, b):

        def rounded(a: Any, b: Any) -> Any:
            return libdevice.dmul_rn(a, b)

    else:

        def rounded(a: Any, b: Any) -> Any:
            return libdevice.fmul_rn(a, b)

    return rounded


@cpu
def power(base: float, exponent: int) -> float:
    """base ** exponent by squaring, for exponents >= 0. The `pow` functions of different libraries do not agree bit for
    bit."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result = product(result, base)
        base = product(base, base)
        exponent >>= 1
    return result
