"""Execution of the schedule on many workers: each task of the schedule is one Dask task per worker, pinned to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
from distributed import Client, Future

from pipeline.cluster.run_plugin import run_worker_stage
from pipeline.records import StageResult


class CrewExecutor:
    """Runs each task of the schedule as one Dask task per worker."""

    def __init__(
        self, client: Client, addresses: Sequence[str], token: str, results: Callable[[Sequence[Future]], list[Any]],
        together: Callable[[Sequence[StageResult]], StageResult],
    ) -> None:  # fmt: skip
        """`results`: waits for tasks and returns their results; `together`: merges the results of all workers for a
        task."""
        self._client, self._addresses, self._token = client, addresses, token
        self._results, self._together = results, together
        # Dask keys are global to the scheduler, and a block number may occur in several stretches of a run.
        self._id = uuid.uuid4().hex[:8]

    def submit(self, stage: str, number: int, after: list[list[Future]]) -> list[Future]:
        with dask.annotate(executor=stage):
            return [
                self._client.submit(
                    run_worker_stage, stage, number, self._token, [futures[rank] for futures in after],
                    key=f"{stage}-{number}-{rank}-{self._id}", pure=False, retries=0, workers=[address],
                )
                for rank, address in enumerate(self._addresses)
            ]  # fmt: skip

    def result(self, futures: list[Future]) -> StageResult:
        return self._together(self._results(futures))

    def settle(self, futures: list[list[Future]]) -> None:
        """Does not wait for running tasks: they may be stuck in a collective, and their processes are about to end.
        Tasks that have not begun are cancelled when their futures are released."""
