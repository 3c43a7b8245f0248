"""Execution of the schedule on many workers: each task of the schedule is one Dask task per worker, pinned to it, and
each pair of workers has a Dask task that carries the key request from one to the other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
from distributed import Client, Future

from pipeline.cluster.run_plugin import run_unite, run_worker_stage, take_key_request
from pipeline.records import StageResult
from pipeline.stages import STAGES


class CrewExecutor:
    """Runs each task of the schedule as one Dask task per worker."""

    def __init__(
        self, client: Client, addresses: Sequence[str], token: str, results: Callable[[Sequence[Future]], list[Any]],
        together: Callable[[Sequence[StageResult]], StageResult], by_collective: bool = False,
    ) -> None:  # fmt: skip
        """`results`: waits for tasks and returns their results; `together`: merges the results of all workers for a
        task. `by_collective`: workers exchange keys by a collective, not by Dask tasks."""
        self._client, self._addresses, self._token = client, addresses, token
        self._results, self._together, self._by_collective = results, together, by_collective
        # Dask keys are global to the scheduler, and a block number may occur in several stretches of a run.
        self._id = uuid.uuid4().hex[:8]
        self._key_requests: dict[int, list[Future]] = {}

    def submit(self, stage: str, number: int, after: list[list[Future]]) -> list[Future]:
        if stage == "unite" and not self._by_collective:
            return self._unite(number, after)
        return [
            self._task(run_worker_stage, stage, rank, number, stage, number, self._token, [f[rank] for f in after])
            for rank in range(len(self._addresses))
        ]

    def _unite(self, number: int, after: list[list[Future]]) -> list[Future]:
        """Submit a task for each pair of workers that carries a key request, and a `unite` task for each owner."""
        ranks = range(len(self._addresses))
        deduplicated = after[-1]
        sent = {
            (rank, owner): self._task(
                take_key_request, f"keys-{owner}", rank, number, number, owner, self._token, deduplicated[rank]
            )
            for rank in ranks
            for owner in ranks
            if rank != owner
        }  # fmt: skip
        self._key_requests[number] = list(sent.values())
        return [
            self._task(
                run_unite, "unite", owner, number, number, owner, self._token, [f[owner] for f in after],
                [sent[rank, owner] for rank in ranks if rank != owner],
            )
            for owner in ranks
        ]  # fmt: skip

    def _task(self, function: Callable[..., Any], name: str, rank: int, number: int, *args: Any) -> Future:
        with dask.annotate(executor=name if name in STAGES else "default"):
            return self._client.submit(
                function, *args, key=f"{name}-{number}-{rank}-{self._id}", pure=False, retries=0,
                workers=[self._addresses[rank]],
            )  # fmt: skip

    def result(self, futures: list[Future]) -> StageResult:
        done = self._together(self._results(futures))
        if done.stage == "unite":
            self._key_requests.pop(done.number, None)
        return done

    def settle(self, futures: list[list[Future]]) -> None:
        """Does not wait for running tasks: they may be stuck in a collective, and their processes are about to end.
        Tasks that have not begun are cancelled when their futures are released."""
