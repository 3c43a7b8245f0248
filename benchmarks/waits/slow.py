"""A run slowed by one cause, in a separate process: `python -m benchmarks.waits.slow CASE WORKFLOW.py RUN_DIR`.

Each case delays one function, in the thread that runs the stage.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from pipeline.commits.manifest import Commits
from pipeline.models import DeepFM
from pipeline.run import main
from pipeline.storage.log import Log
from pipeline.storage.slab import Slab
from pipeline.training.learner import Learner
from pipeline.worker import stage_runner
from pipeline.worker.placement import OnHost

BLOCK_SECONDS = 0.25
"""Delay of each block, and of each scored batch; several times its training time."""
COMMIT_SECONDS = 2.0
ROW_SECONDS = 5e-5
"""Delay of each row."""


class SlowOnSecond(DeepFM):
    """A model that takes longer on the second worker."""

    def forward(self, *args: Any) -> torch.Tensor:
        if name_of_worker() == "1":
            time.sleep(BLOCK_SECONDS)
        return super().forward(*args)


def name_of_worker() -> str:
    """Name of the Dask worker of this thread's task; empty outside a task."""
    from distributed import get_worker

    try:
        return str(get_worker().name)
    except ValueError:
        return ""


def delay(owner: Any, name: str, seconds_of: Callable[..., float]) -> None:
    """Make a function take this much longer; the delay may depend on its arguments."""
    plain = getattr(owner, name)

    def slow(*args: Any, **named: Any) -> Any:
        time.sleep(seconds_of(*args))
        return plain(*args, **named)

    setattr(owner, name, slow)


def of_block(*_: Any) -> float:
    return BLOCK_SECONDS


def of_rows(_: Any, at_U: Any, *__: Any) -> float:
    """Not for rows that a commit or a fingerprint moves in the driver's thread."""
    in_stage = threading.current_thread().name.startswith(("prefetch", "write_back"))
    return ROW_SECONDS * len(at_U) if in_stage else 0.0


def of_host_rows(slab: Slab, at_U: Any, *rest: Any) -> float:
    return 2 * of_rows(slab, at_U, *rest) if slab.where(0).startswith("host") else 0.0


def take_a_core() -> None:
    """Make a separate process keep one core busy until this one ends."""
    multiprocessing.get_context("fork").Process(target=_spin, daemon=True).start()


def _spin() -> None:
    while True:
        pass


CASES: dict[str, tuple[str, Callable[[], None]]] = {
    "read": ("read", lambda: delay(stage_runner, "read", of_block)),
    "dedup": ("dedup", lambda: delay(OnHost, "dedup", of_block)),
    "plan": ("plan", lambda: delay(stage_runner, "plan", of_block)),
    "disk_reads": ("disk", lambda: delay(Log, "gather", of_rows)),
    "disk_writes": ("disk", lambda: delay(Log, "scatter", of_rows)),
    "host": ("host copy", lambda: delay(Slab, "gather", of_host_rows)),
    "commit": ("commit", lambda: delay(Commits, "publish", lambda *_: COMMIT_SECONDS)),
    "evaluation": ("evaluation", lambda: delay(Learner, "_score", of_block)),
    "worker": ("other workers", lambda: None),
    "core": ("train", take_a_core),
}
"""Cause that must be found for a case, and the function that plants it."""

if __name__ == "__main__":
    case, *arguments = sys.argv[1:]
    if case in CASES:
        CASES[case][1]()
    sys.exit(main(arguments))
