"""Tasks of the schedule as tasks of Dask: one for each worker, pinned to it, and for each pair of them one that takes
keys from the one to the other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask
from distributed import Client, Future

from pipeline.cluster.member import run_stage, run_unite, take_parcel
from pipeline.records import Closed, Done, Moves, Progressed


class CrewExecutor:
    """A task of the schedule is one task for each worker."""

    def __init__(
        self, client: Client, addresses: Sequence[str], token: str,
        results: Callable[[Sequence[Future]], list[Any]], by_mail: bool = False,
    ) -> None:  # fmt: skip
        """`results`: waits for tasks. `by_mail`: workers send each other keys by a collective, not by tasks."""
        self._client, self._addresses, self._token, self._results = client, addresses, token, results
        self._by_mail = by_mail
        # Keys are global to the scheduler, and stretches of one run have blocks of the same numbers.
        self._id = uuid.uuid4().hex[:8]
        self._parcels: dict[int, list[Future]] = {}
        self.closed: dict[int, list[Closed]] = {}
        """What workers know of the splits that blocks closed."""

    def submit(self, stage: str, number: int, after: list[list[Future]]) -> list[Future]:
        if stage == "unite" and not self._by_mail:
            return self._unite(number, after)
        return [
            self._task(run_stage, stage, rank, number, stage, number, self._token, [f[rank] for f in after])
            for rank in range(len(self._addresses))
        ]

    def _unite(self, number: int, after: list[list[Future]]) -> list[Future]:
        """One task for each pair of workers takes a parcel to where it belongs."""
        ranks = range(len(self._addresses))
        deduplicated = after[-1]
        sent = {
            (rank, owner): self._task(
                take_parcel, f"keys{owner}", rank, number, number, owner, self._token, deduplicated[rank]
            )
            for rank in ranks
            for owner in ranks
            if rank != owner
        }  # fmt: skip
        self._parcels[number] = list(sent.values())
        return [
            self._task(
                run_unite, "unite", owner, number, number, owner, self._token, [f[owner] for f in after],
                [sent[rank, owner] for rank in ranks if rank != owner],
            )
            for owner in ranks
        ]  # fmt: skip

    def _task(self, function: Callable[..., Any], name: str, rank: int, number: int, *args: Any) -> Future:
        executor = "train" if name == "train" else "keys" if name == "unite" and self._by_mail else "default"
        with dask.annotate(executor=executor):
            return self._client.submit(
                function, *args, key=f"{name}-{number}-{rank}-{self._id}", pure=False, retries=0,
                workers=[self._addresses[rank]],
            )  # fmt: skip

    def result(self, futures: list[Future]) -> Done:
        return self.together(self._results(futures))

    def together(self, dones: Sequence[Done]) -> Done:
        """What the workers say of the same task."""
        first = dones[0]
        if first.stage == "unite":
            self._parcels.pop(first.number, None)
        refusals = [
            replace(done.refusal, message=f"worker {rank}: {done.refusal.message}")
            for rank, done in enumerate(dones)
            if done.refusal
        ]
        # Those that stop since another one did come after it.
        refusal = min(refusals, key=lambda r: (r.block.number, r.what == "pause"), default=None)
        moves = [done.moves for done in dones if done.moves]
        trained = [done.trained for done in dones if done.trained]
        if any(part.closed for part in trained):
            # On a GPU what a block came to is told with a later one.
            self.closed[trained[0].block.number] = [part.closed or Closed() for part in trained]
        return replace(
            first, refusal=refusal, moves=_sum(moves) if moves else None,
            trained=_mean(trained) if trained else None,
        )  # fmt: skip

    def drained(self, of_each: Sequence[Sequence[Done]]) -> list[Done]:
        """What `drain` gave on each worker: when the GPU of the first did what, and what blocks came to on all."""
        spans = [done for done in of_each[0] if not done.trained]
        trained = zip(*([done for done in dones if done.trained] for dones in of_each), strict=True)
        return spans + [self.together(dones) for dones in trained]

    def settle(self, futures: list[list[Future]]) -> None:
        """Nobody waits for what runs: it may be stuck in a collective, and its process is about to end. What has not
        begun is cancelled as the futures are let go."""


def _sum(moves: Sequence[Moves]) -> Moves:
    names = [name for name in Moves.__slots__ if name != "arrives"]
    return replace(moves[0], **{name: sum(getattr(m, name) for m in moves) for name in names})


def _mean(trained: Sequence[Progressed]) -> Progressed:
    weight = sum(part.weight for part in trained)
    loss = sum(part.loss * part.weight for part in trained) / max(weight, 1e-300)
    return replace(trained[0], loss=loss, weight=weight, closed=None)
