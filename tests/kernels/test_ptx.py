"""Every CUDA kernel compiles for the GPUs it is meant for, with no GPU present, and rounds where its twin does."""

import re

import numpy as np
import pytest
from numba import config

from benchmarks.kernels.occupancy import bytes_of
from benchmarks.kernels.ptx import SIGNATURES, kernels, ptx
from pipeline.kernels import BLOCK_THREADS, BLOCKS_AT_ONCE, row_rules, segment_sum
from pipeline.kernels.row_rules import RULE_NUMBERS


def test_every_cuda_kernel_has_its_types_and_its_bytes():
    assert kernels().keys() == SIGNATURES.keys() == bytes_of(1, 1, 0, 0).keys()


@pytest.mark.prove(every=True)
@pytest.mark.parametrize("name", SIGNATURES)
def test_every_kernel_compiles(name):
    """`test_ptxas.py` assembles them, for older GPUs as well."""
    for signature in SIGNATURES[name]:
        text = ptx(name, signature, (9, 0))
        assert ".target sm_90" in text
        assert ".visible .entry" in text


ROUNDED = [
    *(f"update_rows.update_rows_cuda[{rule}]" for rule in RULE_NUMBERS),
    *(f"catch_up.catch_up_cuda[{rule}]" for rule in ("adagrad", "adam")),
    "segment_sum.short_sums_cuda",
    "segment_sum.long_sums_cuda",
]


@pytest.mark.parametrize("name", ROUNDED)
def test_no_product_is_fused_with_the_sum_that_takes_it(name):
    """Then a row would have other bits than on the CPU."""
    text = ptx(name, SIGNATURES[name][0], (9, 0))
    assert "mul.rn.f32" in text
    assert not re.findall(r"\b(?:fma|mad)[.\w]*f32|mul\.f32|div\.(?!rn)[.\w]*f32|sqrt\.(?!rn)[.\w]*f32", text)


def test_a_function_compiled_for_the_cpu_compiles_for_a_gpu():
    """Both in one process, as at the first start on a GPU."""
    row_rules.adam_weight(*map(np.float32, (1, 0, 0, 1, 0.1, 0.1, 1e-8, 0.1)))
    row_rules.adam_weight.recompile()
    name = "update_rows.update_rows_cuda[adam]"
    assert "mul.rn.f32" in ptx(name, SIGNATURES[name][0], (9, 0))


def test_kernels_are_compiled_for_their_number_of_threads():
    """Without the bounds a thread of `long_sums` is given 71 registers, and its block, which has 65,536, cannot run."""
    bounds = {name: kernel.targetoptions["launch_bounds"] for name, kernel in kernels().items()}
    assert bounds.pop("segment_sum.long_sums_cuda") == (segment_sum.LONG_THREADS, 1)
    assert set(bounds.values()) == {(BLOCK_THREADS, BLOCKS_AT_ONCE)}


def test_the_simulator_is_off_where_kernels_are_compiled():
    assert not config.ENABLE_CUDASIM
