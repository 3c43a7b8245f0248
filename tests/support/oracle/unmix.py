"""The inverse of the bijection that mixes keys."""

import numpy as np


def unmixed(mixed):
    """Keys [N] with these mixed keys [N]: the inverse of SplitMix64's output function."""
    x = _unshifted(np.array([*mixed], np.uint64), 31) * np.uint64(pow(0x94D049BB133111EB, -1, 2**64))
    x = _unshifted(x, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
    return _unshifted(x, 30)


def _unshifted(x, shift):
    y = x
    for _ in range(64 // shift):
        y = x ^ (y >> np.uint64(shift))
    return y
