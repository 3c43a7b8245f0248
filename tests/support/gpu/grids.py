"""Small grids for the simulator, in which every GPU thread is a Python thread. A kernel's result does not depend on its
grid."""

import functools

import numpy as np
import pytest
from numba import config
from support.oracle.row_table import Table

from pipeline.kernels import (
    absent_adam,
    catch_up,
    dedup_cuda,
    launch,
    requests,
    segment_sum,
    update_rows,
)
from pipeline.kernels.row_rules import RULE_NUMBERS

if config.ENABLE_CUDASIM:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

SHARED = [
    (dedup_cuda, "example_of"), (segment_sum, "first_from"), (segment_sum, "gradient"), (segment_sum, "tile_sum"),
    (requests, "count_one"),
    *((update_rows, name) for name in (
        "full_gradient", "rowwise_row", "adam_weight", "adagrad_weight", "ftrl_sums", "ftrl_weight",
    )),
    *((update_rows, name) for name in ("rowwise_step", "squares", "clip_row")),
    *((absent_adam, name) for name in ("stands_still", "adam_rest", "adam_weight")),
    *((catch_up, name) for name in (
        "shrinkage", "shrinks", "adagrad_weight", "adagrad_absent", "rowwise_absent", "adam_absent",
    )),
]  # fmt: skip
"""Functions of both targets that the simulator must call uncompiled: they take the simulator's arrays, or return NumPy
scalars, which compiled code would turn into Python numbers."""


@pytest.fixture(autouse=True, scope="module")
def small_grids():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "BLOCK_THREADS", 4)
        patch.setattr(launch, "MAX_BLOCKS", 2)
        patch.setattr(launch, "WARP", 2)
        patch.setattr(segment_sum, "LONG", 3)
        patch.setattr(segment_sum, "LONG_THREADS", 6)
        patch.setattr(segment_sum, "MAX_BLOCKS", 2)
        patch.setattr(launch, "_argument", as_argument)
        compile_what_calls_them()
        for module, name in SHARED:
            patch.setattr(module, name, getattr(module, name).py_func)
        yield


def compile_what_calls_them():
    """Compile the CPU's kernels for writable and read-only arrays, before the functions that they call are replaced by
    uncompiled ones."""
    for kind in RULE_NUMBERS:
        table = Table(kind, np.float32, 1, 2, True, lambda t: (0.1, 0.1), 1)
        for clip in (0, 1):
            table.clip, table.step = (np.float32(clip), np.float32(0)), 0
            table.update(np.zeros(1, np.int32), np.zeros((1, 3)))
    no_keys = np.zeros(1, np.int32), np.zeros(1, np.int32)
    requests.count_examples(*no_keys, 1, no_keys[0][:0])


def as_argument(value):
    """Wrap an array as a simulator array, since the simulator copies NumPy arrays back and forth."""
    return within_bounds()(np.asarray(value)) if isinstance(value, np.ndarray) else value


@functools.cache
def within_bounds():
    """Return a class of simulator arrays that rejects indices and slices that NumPy accepts but a GPU does not check:
    negative ones, and slices beyond the end."""

    class WithinBounds(FakeCUDAArray):
        def __getitem__(self, index):
            check_index(index, self._ary.shape)
            found = self._ary[index]
            return WithinBounds(found) if type(found) is np.ndarray else found

        def __setitem__(self, index, value):
            check_index(index, self._ary.shape)
            self._ary[index] = value

    return WithinBounds


def check_index(index, shape):
    """Raise IndexError unless each part of an index is within the array. NumPy itself checks for single indices that
    are too large."""
    for part, size in zip(index if type(index) is tuple else (index,), shape, strict=False):
        bounds = (part.start or 0, size if part.stop is None else part.stop) if type(part) is slice else (part, 0)
        if min(bounds) < 0 or max(bounds) > size:
            raise IndexError(f"index {part} of an array with {size} items")
