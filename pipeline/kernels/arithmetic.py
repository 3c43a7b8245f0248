"""Arithmetic that has the same bits on both targets.

A CUDA compiler may turn a product and the sum that takes it into one operation with one rounding. `product` is rounded
by itself, as on the CPU; sums, quotients and square roots are rounded correctly on both anyway.
"""

from __future__ import annotations

from typing import Any

from numba.cuda import libdevice
from numba.extending import overload


def product(a: Any, b: Any) -> Any:
    """a * b in float32."""
    return a * b


@overload(product, target="cpu")
def _product_on_cpu(a: Any, b: Any) -> Any:
    # Numba wants the same annotations on both.
    def rounded(a: Any, b: Any) -> Any:
        return a * b

    return rounded


@overload(product, target="cuda")
def _product_on_gpu(a: Any, b: Any) -> Any:
    def rounded(a: Any, b: Any) -> Any:
        return libdevice.fmul_rn(a, b)

    return rounded
