"""Compilation of every CUDA kernel to PTX and assembly, without a GPU: its registers, stack and shared memory."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from numba import cuda, float32, int8, int32, int64, types, uint8, uint16, uint32, uint64
from numba.cuda import dispatcher

import pipeline.kernels
from pipeline.kernels.row_rules import RULE_NUMBERS

KEYS, WORDS, INTS, FLOATS = (types.Array(t, 1, "C") for t in (uint64, uint32, int32, float32))
ROWS, FLOAT_ROWS, INT_ROWS, PAIRS = (types.Array(t, 2, "C") for t in (uint32, float32, int32, uint64))
SHORT_ROWS = types.Array(uint16, 2, "C")
FLOAT_CUBE, LONGS, BYTES, FLAGS = (
    types.Array(float32, 3, "C"), types.Array(int64, 1, "C"), types.Array(uint8, 1, "C"), types.Array(int8, 1, "C")
)  # fmt: skip
SUM = (FLOAT_ROWS, FLOATS, INTS, INTS, FLOATS, int64, FLOAT_ROWS, int64)
UPDATE = (
    FLOAT_ROWS, ROWS, int64, int64, INTS, FLOAT_ROWS, INTS, int64, int64, FLOAT_ROWS, types.UniTuple(float32, 4),
    types.boolean, int64,
)  # fmt: skip
CATCH_UP = (
    FLOAT_ROWS, ROWS, int64, int64, INTS, int64, int64, int64, FLOAT_ROWS, INTS, types.UniTuple(float32, 4),
    types.Tuple((int64, int64, float32, int64, float32)),
)  # fmt: skip

SIGNATURES: dict[str, list[tuple[Any, ...]]] = {
    "rows.gather_cuda": [(ROWS, INTS, ROWS, int64), (PAIRS, INTS, PAIRS, int64)],
    "rows.scatter_cuda": [(ROWS, INTS, ROWS, int64), (PAIRS, INTS, PAIRS, int64)],
    "pool.lookup_cuda": [(FLOAT_ROWS, FLOAT_ROWS, INTS, int64, FLOAT_ROWS, int64)],
    "pool.pool_singles_cuda": [(FLOAT_ROWS, INTS, INTS, int64, int64, FLOAT_CUBE, FLOAT_ROWS, int64)],
    "pool.pool_bags_cuda": [(FLOAT_ROWS, INTS, INT_ROWS, INTS, INTS, int64, int64, FLOAT_CUBE, FLOAT_ROWS, int64)],
    "segment_sum.short_sums_cuda": [SUM],
    "segment_sum.long_sums_cuda": [SUM],
    **{f"update_rows.update_rows_cuda[{rule}]": [UPDATE] for rule in RULE_NUMBERS},
    "update_rows.clip_gradients_cuda": [
        (FLOAT_ROWS, FLOAT_ROWS, INTS, int64, int64, FLOAT_ROWS, types.UniTuple(float32, 2), BYTES),
    ],
    **{f"catch_up.catch_up_cuda[{rule}]": [(*CATCH_UP, int64)] for rule in ("sgd", "adagrad", "adam")},
    "catch_up.catch_up_rowwise_cuda": [CATCH_UP],
    "catch_up.mark_cuda": [(ROWS, int64, INTS, int64)],
    "narrow_rows.widen_cuda": [(ROWS, SHORT_ROWS, ROWS, SHORT_ROWS, INTS, INT_ROWS, ROWS, FLOAT_ROWS, int64)],
    "narrow_rows.narrow_cuda": [(ROWS, INTS, INT_ROWS, uint64, types.boolean, ROWS, SHORT_ROWS, int64)],
    "init_rows.clear_unused_cuda": [(ROWS, values, int64, int64, int64, INTS, INTS) for values in (ROWS, SHORT_ROWS)],
    "requests.count_examples_cuda": [(INTS, INTS, int64, INTS)],
    "dedup_cuda.insert_keys": [(KEYS, KEYS, INTS, INTS, INTS)],
    "dedup_cuda.find_first": [(INTS, INTS)],
    "dedup_cuda.mark_first": [(INTS, INTS, FLAGS)],
    "dedup_cuda.keep_firsts": [(KEYS, INTS, INTS, INTS, KEYS), (INTS, INTS, INTS, INTS, INTS)],
    "dedup_cuda.look_up_number": [(INTS, INTS, int64, INTS)],
    "dedup_cuda.tile_of": [
        (INTS, INT_ROWS, int64, int64, int64, INTS),
        (INTS, INT_ROWS, int64, int64, int64, LONGS),
    ],
    "dedup_cuda.group_values": [(LONGS, INTS, INT_ROWS, INTS, INTS, INTS, INTS)],
}
"""Every kernel, with the types with which it is launched."""


@dataclass(frozen=True)
class Assembled:
    """Requirements of a kernel: shared bytes per block, everything else per thread."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Multiprocessor:
    """Resources of one multiprocessor of a GPU, which its blocks share."""

    shared_bytes: int
    threads: int = 2_048
    blocks: int = 32
    registers: int = 65_536


GPUS = {(8, 0): Multiprocessor(164 << 10), (9, 0): Multiprocessor(228 << 10)}
"""A100, H100: the compute capabilities that kernels are assembled for."""


def kernels() -> dict[str, Any]:
    """All CUDA kernels of the package by name. A kernel compiled for each rule has the rule's name in brackets."""
    rule_names = {number: name for name, number in RULE_NUMBERS.items()}
    found = {}
    for name in [module.name for module in pkgutil.iter_modules(pipeline.kernels.__path__)]:
        for attribute, value in vars(importlib.import_module(f"pipeline.kernels.{name}")).items():
            if isinstance(value, dispatcher.CUDADispatcher):
                found[f"{name}.{attribute}"] = value
            elif isinstance(value, tuple | dict):
                for rule, kernel in value.items() if isinstance(value, dict) else enumerate(value):
                    if isinstance(kernel, dispatcher.CUDADispatcher):
                        found[f"{name}.{kernel.py_func.__name__}[{rule_names[rule]}]"] = kernel
    return found


@contextlib.contextmanager
def as_if_on(capability: tuple[int, int]) -> Iterator[None]:
    """Context in which functions called by a kernel are compiled for this GPU. Otherwise they would be compiled for the
    current GPU, and there is none."""
    device = type("Device", (), {"compute_capability": capability})()
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        yield


@functools.cache
def ptx(name: str, signature: tuple[Any, ...], capability: tuple[int, int]) -> str:
    """Compile a kernel for GPUs of a compute capability, with the bounds of its launch."""
    kernel = kernels()[name]
    with as_if_on(capability):
        text, _ = cuda.compile_ptx(
            kernel.py_func,
            types.void(*signature),
            cc=capability,
            launch_bounds=kernel.targetoptions["launch_bounds"],
        )
    return str(text)


def assembler() -> str | None:
    """Path of `ptxas`: from the package that contains it, or the machine's; None if there is none."""
    toolkit = find_spec("nvidia")
    for folder in (toolkit.submodule_search_locations or []) if toolkit else []:
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return shutil.which("ptxas")


def assemble(text: str, capability: tuple[int, int]) -> Assembled:
    """Assemble the PTX of one kernel.

    Raises CalledProcessError if `ptxas` rejects it.
    """
    command = [assembler() or "ptxas", "--verbose", f"--gpu-name=sm_{capability[0]}{capability[1]}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        done = subprocess.run(
            [*command, str(source), "--output-file", f"{folder}/kernel.cubin"],
            capture_output=True,
            text=True,
            check=True,
        )

    def most(pattern: str) -> int:
        return max(map(int, re.findall(pattern, done.stdout + done.stderr)), default=0)

    return Assembled(
        registers=most(r"Used (\d+) registers"),
        stack_bytes=most(r"(\d+) bytes stack frame"),
        spilled_bytes=most(r"(\d+) bytes spill stores") + most(r"(\d+) bytes spill loads"),
        shared_bytes=most(r"(\d+) bytes smem"),
    )


def blocks_at_once(kernel: Assembled, threads: int, processor: Multiprocessor) -> int:
    """Number of a kernel's blocks of `threads` threads that one multiprocessor runs concurrently."""
    # A warp gets registers in units of 256; a block gets shared memory in units of 128 bytes, plus 1 KiB.
    registers_a_warp = -(-32 * kernel.registers // 256) * 256
    shared_a_block = -(-kernel.shared_bytes // 128) * 128 + 1024
    return min(
        processor.blocks,
        processor.threads // threads,
        processor.registers // registers_a_warp // (threads // 32),
        processor.shared_bytes // shared_a_block,
    )
