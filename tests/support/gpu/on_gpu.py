"""Copies of arrays to the real GPU and back, for the checks that every CUDA twin must pass."""

import numpy as np


def reason():
    """Reason why the tests of this folder cannot run here; empty if they can."""
    from pipeline.device.gpu import choose

    try:
        choose("cuda")
    except ValueError as error:
        return str(error)
    return ""


def to_device(array):
    import cupy

    return cupy.asarray(array)


def back(array):
    import cupy

    return cupy.asnumpy(array) if not isinstance(array, np.ndarray) else array
