"""Every CUDA kernel, assembled for the GPUs it is meant for, with no GPU present: it fits the launch that it is
compiled for, and keeps nothing in memory that belongs in registers."""

import pytest

from benchmarks.kernels.ptx import GPUS, SIGNATURES, assemble, assembler, blocks_at_once, kernels, ptx

pytestmark = [pytest.mark.prove(every=True), pytest.mark.skipif(assembler() is None, reason="needs ptxas")]
BLOCK_SHARED_BYTES = 48 << 10
"""Shared memory that a block may declare."""


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_kernel_fits_its_launch_without_spilling(name, capability):
    threads, at_once = kernels()[name].targetoptions["launch_bounds"]
    for signature in SIGNATURES[name]:
        found = assemble(ptx(name, signature, capability), capability)
        assert (found.stack_bytes, found.spilled_bytes) == (0, 0)
        assert found.registers <= 64
        assert found.shared_bytes <= BLOCK_SHARED_BYTES
        assert blocks_at_once(found, threads, GPUS[capability]) >= at_once


def test_a_spill_is_noticed():
    """A kernel must spill with half of the registers that it takes."""
    name = "update_rows.update_rows_cuda[adam]"
    text = ptx(name, SIGNATURES[name][0], (9, 0))
    assert assemble(text.replace(".minnctapersm 4", ".minnctapersm 8"), (9, 0)).spilled_bytes > 0
