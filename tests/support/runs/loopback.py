"""Process groups whose workers are threads of one process, and results of calls in several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.errors import LostTouch
from pipeline.records import Rank


def make_groups(world: int, timeout_seconds: float = 30.0, check: bool = True) -> list[Group]:
    """Each worker's end of a group, on loopback."""
    settings = GroupSettings("lo", timeout_seconds, check)
    store = Store("127.0.0.1", serves=True)

    def join(rank: int) -> Group:
        return Group(Store("127.0.0.1", store.port), "group", Rank(rank, world), settings)

    return together([partial(join, rank) for rank in range(world)])


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make these calls, each in its own thread, and return their results. Errors are raised after all calls have
    ended."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return outcomes([threads.submit(call) for call in calls])


def outcomes(futures: Sequence[Future[Any]]) -> list[Any]:
    """Results of all futures. Raises the original error of a worker rather than the errors that it caused on others."""
    wait(futures)
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, LostTouch)):
        raise error
    return [future.result() for future in futures]
