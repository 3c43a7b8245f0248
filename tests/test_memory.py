"""Arrays begin where the matrix libraries like it; and what has no glibc runs all the same."""

import ctypes

import numpy as np
import pytest

from pipeline import memory
from pipeline.memory import ALIGNMENT, aligned_empty, keep_freed_memory


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.uint64])
@pytest.mark.parametrize("shape", [1, 7, (3, 5), (1, 1, 1), (129, 7), (1 << 20,), 0, (0, 4), (4, 0)], ids=str)
def test_an_array_begins_anywhere_or_has_another_shape(shape, dtype):
    for _ in range(5):
        array = aligned_empty(shape, dtype)
        assert array.ctypes.data % ALIGNMENT == 0 or not array.size
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_two_arrays_share_bytes():
    arrays = [aligned_empty((10, 3), np.int32) for _ in range(20)]
    for number, array in enumerate(arrays):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_a_system_without_mallopt_cannot_run(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    keep_freed_memory()


def test_the_allocator_refuses_a_setting(monkeypatch):
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        pytest.skip("needs glibc's mallopt")
    answers = []

    class Spy:
        @staticmethod
        def mallopt(option, value):
            answers.append(library.mallopt(option, value))

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Spy)
    keep_freed_memory()
    assert answers == [1, 1, 1]
