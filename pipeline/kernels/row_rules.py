"""Arithmetic of the row optimizers: one weight, one step. All kernels that update rows share it, on CPU and GPU, with
the same bits: a CUDA compiler may fuse a multiplication and an addition into one operation with a single rounding, so
`product` is always rounded separately, as on the CPU. Sums, quotients and square roots are correctly rounded on both.

A rule is identified by a small number. Besides the gradient, it uses four numbers of the step (`rates_T4`) and four of
the rule (`settings`), all in the dtype of the weights:

  rates     size, eps, l2, factor: the step's learning rate (Adam: with both bias corrections); eps; the factor of the
            weight in its gradient; the factor that scaled the gradient (`l2` contains it already)
  settings  Adam: 1 - beta1, 1 - beta2. FTRL: beta, l1, l2. The others are 0
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
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


SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = range(5)
RULE_NUMBERS = {"sgd": SGD, "adagrad": ADAGRAD, "rowwise_adagrad": ROWWISE_ADAGRAD, "adam": ADAM, "ftrl": FTRL}
SIZE, EPS, L2, FACTOR = range(4)
"""Columns of `rates_T4`."""


def adam_size(lr: float, beta1: float, beta2: float, step: int) -> float:
    """Learning rate with both bias corrections; `step` counts from 1 (Kingma and Ba, 2015, end of section 2)."""
    return lr * math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)


@cpu
def full_gradient(grad: Any, weight: Any, l2: Any, factor: Any) -> Any:
    """Scaled gradient plus L2 term; `l2` already includes `factor`."""
    return product(factor, grad) + product(l2, weight)


@cpu
def adam_weight(weight: Any, m: Any, v: Any, grad: Any, rate1: Any, rate2: Any, eps: Any, size: Any) -> Any:
    """Return the weight, m and v after the step (Kingma and Ba, 2015, algorithm 1); `rate1` is 1 - beta1, `rate2` is
    1 - beta2."""
    m += product(grad - m, rate1)
    v += product(product(grad, grad) - v, rate2)
    return weight - product(size, m / (math.sqrt(v) + eps)), m, v


@cpu
def adagrad_weight(weight: Any, total: Any, grad: Any, eps: Any, size: Any) -> Any:
    """Return the weight and the sum of squares after the step (Duchi, Hazan and Singer, 2011)."""
    total += product(grad, grad)
    return weight - product(size, grad / (math.sqrt(total) + eps)), total


@cpu
def ftrl_sums(weight: Any, z: Any, n: Any, grad: Any, size: Any) -> Any:
    """Return z and n after the step (McMahan et al., KDD 2013, algorithm 1); `size` is alpha. Computed in float64
    because it subtracts two nearly equal square roots."""
    grad = np.float64(grad)
    total = np.float64(n) + product(grad, grad)
    sigma = (math.sqrt(total) - math.sqrt(np.float64(n))) / np.float64(size)
    return np.float64(z) + (grad - product(sigma, np.float64(weight))), total


@cpu
def ftrl_weight(z: Any, n: Any, beta: Any, l1: Any, l2: Any, size: Any) -> Any:
    """Return the weight that follows from the stored z and n."""
    beyond = abs(np.float64(z)) - np.float64(l1)
    if beyond <= 0:
        return 0.0
    shrink = (np.float64(beta) + math.sqrt(np.float64(n))) / np.float64(size) + np.float64(l2)
    return math.copysign(beyond / shrink, -np.float64(z))


def step_reference(
    rule: int, weights: Any, state: Any, grads: Any, rates: Any, settings: Any, dim: int, clip: Any = None,
    count: int = 1,
) -> None:  # fmt: skip
    """Update one row by one step in place, with NumPy. `state` is [G, C] (row-wise Adagrad: [2, 1]); `clip` is (r,
    floor)."""
    size, eps, l2, factor = rates
    grads = factor * grads + l2 * weights
    if clip is not None:
        norm, own = (np.sqrt(sum_of_squares(values[:dim])) for values in (grads, weights))
        bound = grads.dtype.type(count) * max(clip[0] * own, clip[1])
        if norm > bound:
            grads[:dim] *= bound / norm
    if rule == SGD:
        weights -= size * grads
    elif rule == ADAGRAD:
        state[0] += grads * grads
        weights -= size * (grads / (np.sqrt(state[0]) + eps))
    elif rule == ROWWISE_ADAGRAD:
        for part, of in enumerate((slice(0, dim), slice(dim, None))):
            if len(grads[of]):
                state[part] += sum_of_squares(grads[of]) / grads.dtype.type(len(grads[of]))
                weights[of] -= size * (grads[of] / (np.sqrt(state[part]) + eps))
    elif rule == ADAM:
        state[0] += (grads - state[0]) * settings[0]
        state[1] += (grads * grads - state[1]) * settings[1]
        weights -= size * (state[0] / (np.sqrt(state[1]) + eps))
    else:
        for c in range(len(weights)):
            state[0, c], state[1, c] = ftrl_sums.py_func(weights[c], state[0, c], state[1, c], grads[c], size)
            weights[c] = ftrl_weight.py_func(state[0, c], state[1, c], *settings[:3], size)


def sum_of_squares(values: Any) -> Any:
    """Squares, summed one by one as in the kernels."""
    total = values.dtype.type(0)
    for value in values:
        total += value * value
    return total
