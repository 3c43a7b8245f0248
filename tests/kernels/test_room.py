"""A kernel that is given too short an array refuses it, instead of using the memory behind it."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pipeline.kernels import assemble
from pipeline.kernels.dedup import renumber
from pipeline.kernels.hashing import hash_integers, hash_strings
from pipeline.kernels.init_rows import init_rows
from pipeline.kernels.narrow_rows import FULL_WORD, narrow_rows, widen_rows
from pipeline.kernels.pool import lookup, pool_bags, pool_singles
from pipeline.kernels.read_rows import make_scratch, read_rows
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.kernels.segment_sum import segment_sum

F32, I32, I64, U32, U64 = np.float32, np.int32, np.int64, np.uint32, np.uint64
WHOLE = np.array([[FULL_WORD, 0, 4, 0]], I32)


def zeros(*shape, dtype=F32):
    """Array with twice the memory that it needs: what is written behind its end destroys nothing."""
    return np.zeros((2 * shape[0], *shape[1:]), dtype)[: shape[0]]


def numbers(count, dtype=I32):
    return np.arange(count, dtype=dtype)


ONE = np.zeros(1, I32)
CALLS = {
    "pool_singles": lambda: pool_singles(zeros(9, 3), numbers(9), ONE, 0, 5, zeros(4, 1, 3), zeros(4, 0)),
    "pool_bags": lambda: pool_bags(
        zeros(9, 3), numbers(9), numbers(6)[None], ONE, ONE, 0, 5, zeros(4, 1, 3), zeros(4, 0)
    ),
    "lookup": lambda: lookup(zeros(9, 4), zeros(1, 4), numbers(5), 1, zeros(4, 3)),
    "lookup, too wide": lambda: lookup(zeros(9, 4), zeros(1, 4), numbers(5), 2, zeros(5, 3)),
    "gather_rows": lambda: gather_rows(zeros(9, 4, dtype=U32), numbers(5), zeros(4, 4, dtype=U32)),
    "scatter_rows": lambda: scatter_rows(zeros(9, 4, dtype=U32), numbers(5), zeros(4, 4, dtype=U32)),
    "segment_sum": lambda: segment_sum(zeros(5, 3), zeros(0), numbers(5), numbers(6), zeros(0), 9, zeros(4, 3)),
    "hash_integers": lambda: hash_integers(numbers(5), U64(1), zeros(4, dtype=U64)),
    "hash_strings": lambda: hash_strings(zeros(9, dtype=np.uint8), 3 * numbers(5), U64(1), zeros(4, dtype=U64)),
    "init_rows": lambda: init_rows(numbers(5, U64), U64(1), 0.1, 2, zeros(4, 4, dtype=U32)),
    "widen_rows": lambda: widen_rows(
        zeros(9, 4, dtype=U32), zeros(1, 4, dtype=U32), numbers(5), WHOLE, zeros(4, 4, dtype=U32)
    ),
    "narrow_rows": lambda: narrow_rows(zeros(4, 4, dtype=U32), numbers(5), WHOLE, 1, 1, zeros(9, 4, dtype=U32)),
    "labels_to_float": lambda: assemble.labels_to_float(zeros(4), zeros(5)),
    "transpose_floats": lambda: assemble.transpose_floats(zeros(2, 9), 1, 0, zeros(5, 2)),
    "renumber": lambda: renumber(numbers(5), numbers(5), zeros(4, dtype=I32)),
    "read_rows": lambda: read_rows(
        numbers(5), numbers(4, I64), numbers(5, I64), zeros(5, 4, dtype=U32), make_scratch(16), 0, 1
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_refuses_an_array_that_is_too_short(name):
    with pytest.raises(IndexError, match="an array is too short for a kernel"):
        CALLS[name]()


SLOTS = {
    "gather_rows": lambda at: gather_rows(zeros(9, 8, dtype=U32), at, zeros(1, 8, dtype=U32)),
    "scatter_rows": lambda at: scatter_rows(zeros(9, 8, dtype=U32), at, zeros(1, 8, dtype=U32)),
    "narrow_rows": lambda at: narrow_rows(zeros(1, 4, dtype=U32), at, WHOLE, 1, 1, zeros(9, 4, dtype=U32)),
}


@pytest.mark.parametrize("slot", [-1, 9])
@pytest.mark.parametrize("name", SLOTS)
def test_a_kernel_with_addresses_refuses_a_slot_that_is_none(name, slot):
    with pytest.raises(IndexError, match="index of a kernel"):
        SLOTS[name](np.array([slot], I32))


@pytest.mark.parametrize("row", [-2, 9])
def test_widening_refuses_rows_of_neither_slab_nor_staging(row):
    narrow, staged = zeros(9, 4, dtype=U32), zeros(1, 4, dtype=U32)
    with pytest.raises(IndexError, match="an array is too short for a kernel"):
        widen_rows(narrow, staged, np.array([row], I32), WHOLE, zeros(1, 4, dtype=U32))


def test_rows_that_lie_apart_are_not_moved():
    with pytest.raises(IndexError, match="must be contiguous"):
        gather_rows(zeros(9, 8, dtype=U32), numbers(2), zeros(4, 8, dtype=U32)[::2])


def test_no_rows_are_moved_whatever_their_strides():
    """NumPy gives arrays without rows any strides."""
    gather_rows(zeros(9, 8, dtype=U32), numbers(0), np.zeros((0, 8), U32).copy())


OVERRUN = """
import numpy as np
from pipeline.kernels import cpu

@cpu
def fill(values, num):
    for i in range(num):
        values[i] = 1

behind = np.zeros(8)
fill(behind[:4], 5)
print("written behind the end:", behind[4])
"""


@pytest.mark.prove
def test_checked_bounds_show_a_planted_overrun(tmp_path):
    """The unchecked kernel comes first: what it leaves in the cache must not be taken."""
    (tmp_path / "overrun.py").write_text(OVERRUN)

    def run(checked):
        environment = os.environ | {"PIPELINE_CHECK_BOUNDS": checked, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        return subprocess.run(
            [sys.executable, tmp_path / "overrun.py"], env=environment, capture_output=True, text=True
        )

    assert run("0").stdout == "written behind the end: 1.0\n"
    checked = run("1")
    assert "IndexError: index is out of bounds" in checked.stderr
    assert checked.returncode == 1
