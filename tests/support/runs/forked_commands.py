"""Commands in processes that start with all modules imported, since they are forked from a server that has imported
them: a kill at any instant interrupts the command's work, not its imports."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
from support.depth import PROVES, deep

CONTEXT = multiprocessing.get_context("forkserver")
EXPORTERS = ["torch._dynamo", "torch.export._trace", "torch.onnx._internal.exporter._core", "onnx", "onnxscript"]
"""Modules that torch imports when it exports a model; only proofs export one."""
CONTEXT.set_forkserver_preload([
    "pipeline.serving.commit", "pipeline.serving.exporting", "pipeline.serving.scoring", *(EXPORTERS * PROVES),
])  # fmt: skip
"""Modules that are not installed are ignored."""

Main = Callable[[Sequence[str]], int]


def ends(main: Main, argv: Sequence[str]) -> None:
    sys.exit(main(argv))


def forked(main: Main, *argv: object) -> ForkServerProcess:
    process = CONTEXT.Process(target=ends, args=(main, [*map(str, argv)]))
    process.start()
    return process


def finished(main: Main, *argv: object) -> None:
    process = forked(main, *argv)
    process.join()
    assert process.exitcode == 0


def killed_and_finished(main: Main, argv: Sequence[object], folder: Path, seed: int) -> list[Path]:
    """Outputs of a command that was killed at random instants, at least five times, and then called again."""
    begun = time.monotonic()
    finished(main, *argv, "--out", folder / "measured")
    takes = time.monotonic() - begun
    rng, outputs = np.random.default_rng(seed), [folder / f"killed{number}" for number in range(deep(2, 4))]
    for number in range(deep(5, 20)):
        process = forked(main, *argv, "--out", outputs[number % len(outputs)])
        time.sleep(takes * rng.uniform(0, 1))
        process.kill()
        process.join()
    for out in outputs:
        finished(main, *argv, "--out", out)
    return outputs
