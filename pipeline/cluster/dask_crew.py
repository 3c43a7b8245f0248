"""Many workers, each in a Dask worker of its own, as the driver sees them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from distributed import Future, wait

from pipeline.cluster.awake import LOOK_SECONDS
from pipeline.cluster.check import check_machines, least_disk_bytes
from pipeline.cluster.executor import CrewExecutor
from pipeline.cluster.local import dashboard_link
from pipeline.cluster.member import Invitation, Machine, call, describe, join, leave, serve
from pipeline.cluster.pool import Pool
from pipeline.cluster.team import Team, replicas_for
from pipeline.cluster.watch import Watch
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.identity import Identity, as_json
from pipeline.monitor.metrics import Evaluation
from pipeline.preflight.sizes import Sizes
from pipeline.records import U64, Array, Block, Closed, Done, Progressed, Refusal, Share
from pipeline.schedule import Schedule
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.shards import Shards, deal, shard_folder
from pipeline.worker.worker import Opening
from pipeline.workflow import Workflow

TABLE = Path("table.zarr")
Parts = tuple[Progressed, Sequence[Closed]]
"""A block that closes a split, and what each worker knows of that split."""


class DaskCrew:
    def __init__(
        self, pool: Pool, workflow: Workflow, team: Team, sizes: Sizes, run_dir: Path, commits: Commits,
        speed: DiskSpeed, identity: Identity,
    ) -> None:  # fmt: skip
        """`identity`: of the data that every worker is to read."""
        self._data = json.dumps(as_json(identity))
        self._pool, self._workflow, self._team = pool, workflow, team
        self._sizes, self._run_dir, self._commits, self._speed = sizes, run_dir, commits, speed
        self.world = pool.world
        self.dashboard = dashboard_link(pool.client) if pool.cluster else pool.client.dashboard_link
        self._watch = Watch(pool, workflow.workers.silent_seconds)
        self._by_mail = pool.world > workflow.workers.pairs_up_to
        self.machines: list[Machine] = []
        self._token = ""
        self._owned: dict[str, tuple[int, ...]] | None = None

    def open(self, kept: Sequence[Manifest]) -> None:
        settings = self._workflow.workers
        num_shards = kept[-1].num_shards if kept else settings.num_shards(self.world)
        if num_shards < self.world:
            there_are = f"{num_shards} shard{'s' * (num_shards > 1)}"
            raise ValueError(
                f"the table in {self._run_dir} has {there_are}, which stays so, and each of {self.world} workers needs "
                "one; take fewer workers, or begin anew with --fresh and workers.shards"
            )
        folders = [str(shard_folder(TABLE, shard, num_shards)) for shard in range(num_shards)]
        self.machines = self._each(describe, self._run_dir, folders, self._workflow.device)
        # What lies on the disk already is part of the cap, and not free.
        least = 0 if kept else least_disk_bytes(self._sizes, -(-num_shards // self.world))
        check_machines(self.machines, self._workflow, least)
        owned, owner_of_shard = self._deal(num_shards, bool(kept))
        host = self.machines[0].host
        port = self._result(self._submit(serve, 0, host, settings.timeout_seconds))
        self._token = uuid.uuid4().hex
        replicas = replicas_for(self.world, self._commits, kept)
        joining = []
        for rank, mine in enumerate(owned):
            invitation = Invitation(
                token=self._token,
                share=Share(rank, self.world),
                owner_of_shard=owner_of_shard,
                workflow=self._workflow.model_dump_json(),
                data=self._data,
                modules=self._team.modules,
                hosts=tuple(machine.host for machine in self.machines),
                by_mail=self._by_mail,
                cpus=cpus_of(self._team, rank),
                store_host=host,
                store_port=port,
                timeout_seconds=settings.timeout_seconds,
                check=settings.check_collectives,
            )
            parts = tuple(manifest.part(mine) for manifest in kept)
            shards = Shards(num_shards, mine)
            opening = Opening(self._sizes, self._run_dir, self._speed, parts, replicas[rank], shards)
            joining.append(self._submit(join, rank, invitation, opening))
        self._watch.results(joining)

    def _deal(self, num_shards: int, made: bool) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
        """Shards of each worker, and the worker of each shard. Those of a table that is `made` go to workers whose
        machine has their directory; ValueError: a shard is on none."""
        ranks = [str(rank) for rank in range(self.world)]
        everything = range(num_shards)
        reach = {
            rank: machine.reach if made else everything for rank, machine in zip(ranks, self.machines, strict=True)
        }
        self._owned = deal(num_shards, ranks, reach, self._owned)
        owner = {shard: int(rank) for rank in ranks for shard in self._owned[rank]}
        return [self._owned[rank] for rank in ranks], tuple(owner[shard] for shard in everything)

    def each(self, method: str, *args: Any) -> list[Any]:
        return self._each(call, self._token, method, args)

    def first(self, method: str, *args: Any) -> Any:
        return self._result(self._submit(call, 0, self._token, method, args))

    def replicas(self) -> list[dict[str, Array]]:
        """What each worker trained but the rows, or that of the first, where all have the same."""
        return [self.first("dense")] if self._workflow.optimizer.merge is None else self.each("dense")

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[Done], None]) -> Refusal | None:
        stages = self.each("start", blocks, look_ahead)[0]
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        executor = CrewExecutor(
            self._pool.client, self._pool.addresses, self._token, self._watch.results, self._by_mail
        )
        closed: list[Parts] = []

        def told(done: Done) -> None:
            # What closes a split has its metrics once the scores of all workers are together.
            if done.trained and done.trained.block.number in executor.closed:
                closed.append((done.trained, executor.closed.pop(done.trained.block.number)))
                done = replace(done, trained=None)
            watch(done)

        refusal = Schedule(numbers, look_ahead, stages, executor, told).run()
        for done in executor.drained(self.each("drain")):
            told(done)
        for trained, parts in closed:
            watch(Done("train", trained.block.number, trained=replace(trained, metrics=self._metrics(trained, parts))))
        return refusal

    def _metrics(self, trained: Progressed, parts: Sequence[Closed]) -> dict[str, float]:
        """Exact, of what all workers found of a split."""
        evaluation = Evaluation(
            self._workflow.data.labels, self._run_dir / "scores", grouped=self._workflow.metrics.group is not None
        )
        metrics: dict[str, float] = {}
        if any(part.sums_3T for part in parts):
            for rank, part in enumerate(parts):
                evaluation.join(part, partial(self._scores, rank, trained.block.number))
            metrics = evaluation.result()
        clippable = sum(part.clippable for part in parts)
        return metrics | ({"clipped": sum(part.clipped for part in parts) / clippable} if clippable else {})

    def _scores(self, rank: int, number: int, table: int) -> Iterator[U64]:
        """A worker's sorted entries of a table, piece by piece."""
        while (piece := self._result(self._submit(call, rank, self._token, "scores", (number, table)))) is not None:
            yield piece

    def pause(self, why: str | None) -> None:
        # Not a task: those wait for a free thread, and for each other. Who is not reached learns of it from the others,
        # since refusals are agreed upon, and one that hangs is noticed elsewhere.
        telling = Thread(target=self._tell, args=(why,), daemon=True)
        telling.start()
        telling.join(LOOK_SECONDS)

    def _tell(self, why: str | None) -> None:
        with suppress(Exception):
            self._pool.client.run(_pause, self._token, why, workers=list(self._pool.addresses), on_error="ignore")

    def restart(self) -> None:
        self._pool.restart()

    def close(self) -> None:
        """Whoever is stuck is not waited for."""
        if self._token:
            self._token = ""
            leaving = [self._submit(leave, rank) for rank in range(self.world)]
            with suppress(TimeoutError, CancelledError, OSError):
                wait(leaving, timeout=LOOK_SECONDS)

    def _each(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        futures = [self._submit(function, rank, *args) for rank in range(self.world)]
        return self._watch.results(futures)

    def _submit(self, function: Callable[..., Any], rank: int, *args: Any) -> Future:
        return self._pool.client.submit(
            function, *args, workers=[self._pool.addresses[rank]], pure=False, retries=0,
            key=f"{getattr(function, '__name__', 'task')}-{uuid.uuid4().hex}",
        )  # fmt: skip

    def _result(self, future: Future) -> Any:
        return self._watch.results([future])[0]


def cpus_of(team: Team, rank: int) -> tuple[int, ...]:
    """CPUs that a worker is kept on: those near to it, where some are nearer than others; empty: all."""
    nodes = {seat.node for seat in team.seats}
    return team.seats[rank].cpus if len(nodes) > 1 else ()


def _pause(token: str, why: str | None, dask_worker: Any) -> None:
    dask_worker.plugins["pipeline"].of(token).pause(why)
