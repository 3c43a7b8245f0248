"""Every CUDA kernel compiles for the GPUs it is meant for, with no GPU present, and rounds where its twin does."""

import contextlib
import importlib
import pkgutil
import re
from unittest import mock

import numpy as np
import pytest
from depth import some
from numba import config, cuda, float32, int8, int32, int64, types, uint8, uint16, uint32, uint64
from numba.cuda import dispatcher

import pipeline.kernels
from pipeline.kernels import row_rules, segment_sum

KEYS, WORDS, INTS, FLOATS = (types.Array(t, 1, "C") for t in (uint64, uint32, int32, float32))
ROWS, FLOAT_ROWS, INT_ROWS, PAIRS = (types.Array(t, 2, "C") for t in (uint32, float32, int32, uint64))
SHORT_ROWS = types.Array(uint16, 2, "C")
FLOAT_CUBE, LONGS, BYTES, FLAGS = (
    types.Array(float32, 3, "C"), types.Array(int64, 1, "C"), types.Array(uint8, 1, "C"), types.Array(int8, 1, "C")
)  # fmt: skip
SUM = (FLOAT_ROWS, FLOATS, INTS, INTS, FLOATS, int64, FLOAT_ROWS, int64)

CATCH_UP = (
    int64, FLOAT_ROWS, ROWS, int64, int64, INTS, int64, int64, int64, FLOAT_ROWS, INTS,
    types.UniTuple(float32, 4), types.Tuple((int64, int64, float32, int64, float32)),
)  # fmt: skip

SIGNATURES = {
    "hashing.hash_integers_cuda": [(LONGS, uint64, KEYS), (INTS, uint64, KEYS)],
    "hashing.hash_strings_cuda": [(BYTES, INTS, uint64, KEYS)],
    "rows.gather_cuda": [(ROWS, INTS, ROWS, int64), (PAIRS, INTS, PAIRS, int64)],
    "rows.scatter_cuda": [(ROWS, INTS, ROWS, int64), (PAIRS, INTS, PAIRS, int64)],
    "pool.lookup_cuda": [(FLOAT_ROWS, FLOAT_ROWS, INTS, int64, FLOAT_ROWS, int64)],
    "pool.pool_singles_cuda": [(FLOAT_ROWS, INTS, INTS, int64, int64, FLOAT_CUBE, FLOAT_ROWS, int64)],
    "pool.pool_bags_cuda": [(FLOAT_ROWS, INTS, INT_ROWS, INTS, INTS, int64, int64, FLOAT_CUBE, FLOAT_ROWS, int64)],
    "segment_sum.short_sums_cuda": [SUM],
    "segment_sum.long_sums_cuda": [SUM],
    "update_rows.update_rows_cuda": [
        (
            int64,
            FLOAT_ROWS,
            ROWS,
            int64,
            int64,
            INTS,
            FLOAT_ROWS,
            INTS,
            int64,
            int64,
            FLOAT_ROWS,
            types.UniTuple(float32, 4),
            types.boolean,
            int64,
        ),
    ],
    "clip_gradients.clip_gradients_cuda": [
        (FLOAT_ROWS, FLOAT_ROWS, INTS, int64, int64, FLOAT_ROWS, types.UniTuple(float32, 2), BYTES),
    ],
    "catch_up.catch_up_cuda": [(*CATCH_UP, int64)],
    "catch_up.catch_up_rowwise_cuda": [CATCH_UP],
    "catch_up.mark_cuda": [(ROWS, int64, INTS, int64)],
    "narrow_rows.widen_cuda": [(ROWS, SHORT_ROWS, ROWS, SHORT_ROWS, INTS, INT_ROWS, ROWS, FLOAT_ROWS, int64)],
    "narrow_rows.narrow_cuda": [(ROWS, INTS, INT_ROWS, uint64, types.boolean, ROWS, SHORT_ROWS, int64)],
    "count_examples.count_examples_cuda": [(INTS, INTS, int64, INTS)],
    "dedup_cuda.insert_keys": [(KEYS, KEYS, INTS, INTS, INTS)],
    "dedup_cuda.find_first": [(INTS, INTS)],
    "dedup_cuda.mark_first": [(INTS, INTS, FLAGS)],
    "dedup_cuda.keep_firsts": [(KEYS, INTS, INTS, INTS, KEYS), (INTS, INTS, INTS, INTS, INTS)],
    "dedup_cuda.look_up_number": [(INTS, INTS, int64, INTS)],
    "dedup_cuda.tile_of": [(INTS, INT_ROWS, int64, int64, INTS), (INTS, INT_ROWS, int64, int64, LONGS)],
    "dedup_cuda.group_values": [(LONGS, INTS, INT_ROWS, INTS, INTS, INTS, INTS)],
}
"""Every kernel, with the types that it is launched with."""


def kernels():
    """Names of all CUDA kernels of the package."""
    names = [module.name for module in pkgutil.iter_modules(pipeline.kernels.__path__)]
    modules = {name: importlib.import_module(f"pipeline.kernels.{name}") for name in names}
    return {
        f"{name}.{kernel}"
        for name, module in modules.items()
        for kernel, value in vars(module).items()
        if isinstance(value, dispatcher.CUDADispatcher)
    }


@contextlib.contextmanager
def as_if_on(capability):
    """Functions that a kernel calls are compiled for the present device, and there is none."""
    device = type("Device", (), {"compute_capability": capability})()
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        yield


def ptx(name, signature, capability):
    module, kernel = name.split(".")
    function = getattr(importlib.import_module(f"pipeline.kernels.{module}"), kernel).py_func
    with as_if_on(capability):
        return cuda.compile_ptx(function, types.void(*signature), cc=capability)[0]


def test_every_cuda_kernel_is_in_this_list():
    assert kernels() == set(SIGNATURES)


@pytest.mark.parametrize("capability", some([(8, 0), (9, 0)], (8, 0)))
@pytest.mark.parametrize("name", SIGNATURES)
def test_every_kernel_compiles(name, capability):
    for signature in SIGNATURES[name]:
        text = ptx(name, signature, capability)
        assert f".target sm_{capability[0]}{capability[1]}" in text
        assert ".visible .entry" in text


@pytest.mark.parametrize(
    "name",
    [
        "update_rows.update_rows_cuda",
        "catch_up.catch_up_cuda",
        "segment_sum.short_sums_cuda",
        "segment_sum.long_sums_cuda",
    ],
)
def test_no_product_is_fused_with_the_sum_that_takes_it(name):
    """Then a row would have other bits than on the CPU."""
    text = ptx(name, SIGNATURES[name][0], (9, 0))
    assert "mul.rn.f32" in text
    assert not re.findall(r"\b(?:fma|mad)[.\w]*f32|mul\.f32|div\.(?!rn)[.\w]*f32|sqrt\.(?!rn)[.\w]*f32", text)


def test_a_function_compiled_for_the_cpu_still_compiles_for_a_gpu():
    """Both in one process, as at the first start on a GPU."""
    row_rules.adam_weight(*map(np.float32, (1, 0, 0, 1, 0.1, 0.1, 1e-8, 0.1)))
    row_rules.adam_weight.recompile()
    name = "update_rows.update_rows_cuda"
    assert "mul.rn.f32" in ptx(name, SIGNATURES[name][0], (9, 0))


def test_long_sums_are_compiled_for_their_number_of_threads():
    """65,536 for all threads of a block: without the bounds it was compiled to 71 a thread."""
    assert segment_sum.long_sums_cuda.targetoptions["launch_bounds"] == segment_sum.LONG_THREADS


def test_the_simulator_is_off_where_kernels_are_compiled():
    assert not config.ENABLE_CUDASIM
