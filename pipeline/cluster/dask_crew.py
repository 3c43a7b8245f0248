"""The crew of a run with many workers, each in its own Dask worker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Concatenate

from distributed import Client, Future, wait

from pipeline.cluster.check import check_machines, min_disk_bytes
from pipeline.cluster.crew import P, T, replicas_for
from pipeline.cluster.dashboard import dashboard_link
from pipeline.cluster.local import StageGraph
from pipeline.cluster.merge import Merge
from pipeline.cluster.pool import WorkerPool
from pipeline.cluster.run_plugin import (
    JoinRequest,
    WorkerInfo,
    call_worker,
    join_run,
    leave_run,
    run_worker_stage,
    serve,
    worker_info,
)
from pipeline.cluster.waits import LOOK_SECONDS
from pipeline.cluster.watch import Watch
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.identity import Begun, as_json
from pipeline.preflight.setup import Setup
from pipeline.records import U64, Array, Block, Rank, Refusal, StageResult
from pipeline.schedule import BlockSchedule
from pipeline.storage.folder import Folder
from pipeline.storage.shards import Shards, deal_shards, shard_folder
from pipeline.worker.tiers import WorkerConfig
from pipeline.worker.worker import Worker

TABLE = Path("table.zarr")


class DaskCrew:
    overlaps = True

    def __init__(self, pool: WorkerPool, setup: Setup, folder: Folder, commits: Commits, begun: Begun) -> None:
        """`begun`: the data that every worker must read."""
        self._data, self._sides = json.dumps(as_json(begun.splits)), begun.sides
        self._pool, self._setup, self._spec = pool, setup, pool.spec
        self._workflow = workflow = setup.workflow
        self._run_dir, self._commits, self._speed = folder.path.absolute(), commits, folder.measured
        self.world, self.sizes = pool.world, setup.fit.sizes
        self._link()
        self._watch = Watch(pool, workflow.workers.silent_seconds)
        self.machines: list[WorkerInfo] = []
        self._token = ""
        self._owned: dict[str, tuple[int, ...]] | None = None

    def _link(self) -> None:
        """Set the link to the dashboard."""
        client, ours = self._pool.client, self._pool.cluster is not None
        self.dashboard = dashboard_link(client) if ours else client.dashboard_link

    def open(self, kept: Sequence[Manifest]) -> None:
        settings = self._workflow.workers
        num_shards = kept[-1].num_shards if kept else settings.num_shards(self.world)
        if num_shards < self.world:
            there_are = f"{num_shards} shard{'s' * (num_shards > 1)}"
            more = "" if settings.num_shards(self.world) >= self.world else f" --set workers.shards={self.world}"
            raise ValueError(
                f"the table in {self._run_dir} has {there_are}, which cannot change, and each of {self.world} workers "
                f"needs one; use fewer workers, or start over with --fresh{more}"
            )
        folders = [str(shard_folder(TABLE, shard, num_shards)) for shard in range(num_shards)]
        self.machines = self._each(worker_info, self._run_dir, folders, self._workflow.device)
        # Not checked when resuming from a commit: its chunks count towards the cap, but are not free space.
        minimum = 0 if kept else min_disk_bytes(self.sizes, -(-num_shards // self.world))
        check_machines(self.machines, self._workflow.device, self._setup.storage, minimum)
        owned, owner_of_shard = self._deal(num_shards, bool(kept))
        hosts, folder = tuple(machine.host for machine in self.machines), self._pool.folder
        port = 0 if folder else self._result(self._submit(serve, 0, hosts[0], settings.timeout_seconds))
        self._token = uuid.uuid4().hex
        replicas, scoring = replicas_for(self.world, self._commits, kept), self._setup.scoring
        joining = []
        for rank, mine in enumerate(owned):
            join_request = JoinRequest(
                token=self._token,
                rank=Rank(rank, self.world),
                owner_of_shard=owner_of_shard,
                workflow=self._workflow.model_dump_json(),
                data=self._data,
                sides=self._sides,
                model=self._spec.model,
                hosts=hosts,
                store_port=port,
                store_folder=folder,
                scoring=scoring,
            )
            parts = tuple(manifest.part(mine) for manifest in kept)
            shards = Shards(num_shards, mine)
            config = WorkerConfig(
                self.sizes, self._setup.row, self._setup.agenda.steps_of_epoch,
                self._setup.agenda.largest_batch, self._run_dir, self._speed, parts, replicas[rank], shards,
                scores=scoring is not None,
            )  # fmt: skip
            joining.append(self._submit(join_run, rank, join_request, config))
        self._watch.results(joining)

    def _deal(self, num_shards: int, made: bool) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
        """Assign shards to workers. Returns the shards of each worker, and the owner of each shard. If the table is
        already `made`, a shard goes to a worker on a machine that has the shard's directory; raises ValueError if no
        machine has it."""
        ranks = [str(rank) for rank in range(self.world)]
        everything = range(num_shards)
        reach = {
            rank: machine.reach if made else everything for rank, machine in zip(ranks, self.machines, strict=True)
        }
        self._owned = deal_shards(num_shards, ranks, reach, self._owned)
        owner = {shard: int(rank) for rank in ranks for shard in self._owned[rank]}
        return [self._owned[rank] for rank in ranks], tuple(owner[shard] for shard in everything)

    def each(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> list[T]:
        return self._each(call_worker, self._token, method, args, named)

    def first(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> T:
        return self._call(0, method, *args, **named)

    def _call(self, rank: int, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> T:
        result: T = self._result(self._submit(call_worker, rank, self._token, method, args, named))
        return result

    def replicas(self) -> list[dict[str, Array]]:
        """Results of `Worker.dense` of each worker, or of only the first if all are equal."""
        return [self.first(Worker.dense)] if self._workflow.optimizer.merge is None else self.each(Worker.dense)

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[StageResult], None]) -> Refusal | None:
        stages = self.each(Worker.start, blocks, look_ahead)[0]
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        merge = Merge(self._workflow, self._scores, watch)
        pool = self._pool
        executor = CrewExecutor(pool.client, pool.addresses, self._token, self._watch.results, merge.together)
        refusal = BlockSchedule(numbers, look_ahead, stages, executor, merge.report).run()
        merge.end(self.each(Worker.drain))
        return refusal

    def _scores(self, rank: int, number: int, table: int) -> Iterator[U64]:
        """Yield the entries of a worker's table in pieces."""
        while (piece := self._call(rank, Worker.scores, number, table)) is not None:
            yield piece

    def pause(self, why: str | None) -> None:
        # Not submitted as a task, which would wait for a free thread and for other tasks. A worker that cannot be
        # reached learns of the pause from the others, since workers agree on refusals; a worker that hangs is detected
        # elsewhere.
        sending = Thread(target=self._send_pause, args=(why,), daemon=True)
        sending.start()
        sending.join(LOOK_SECONDS)

    def _send_pause(self, why: str | None) -> None:
        with suppress(Exception):
            self._pool.client.run(_pause, self._token, why, workers=list(self._pool.addresses), on_error="ignore")

    def interrupt(self, why: str) -> None:
        pass

    def restart(self) -> None:
        self._pool.restart()
        self._link()

    def close(self) -> None:
        """Make the workers leave the run, without waiting for stuck ones."""
        if self._token:
            self._token = ""
            leaving = [self._submit(leave_run, rank) for rank in range(self.world)]
            with suppress(TimeoutError, CancelledError, OSError):
                wait(leaving, timeout=LOOK_SECONDS)

    def _each(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        futures = [self._submit(function, rank, *args) for rank in range(self.world)]
        return self._watch.results(futures)

    def _submit(self, function: Callable[..., Any], rank: int, *args: Any) -> Future:
        name = getattr(args[1] if function is call_worker else function, "__name__", "task")
        return self._pool.client.submit(
            function, *args, workers=[self._pool.addresses[rank]], pure=False, retries=0,
            key=f"{name}-{uuid.uuid4().hex}",
        )  # fmt: skip

    def _result(self, future: Future) -> Any:
        return self._watch.results([future])[0]


class CrewExecutor:
    """Runs each task of the schedule as one Dask task per worker."""

    def __init__(
        self, client: Client, addresses: Sequence[str], token: str, results: Callable[[Sequence[Future]], list[Any]],
        together: Callable[[Sequence[StageResult]], StageResult],
    ) -> None:  # fmt: skip
        """`results`: waits for tasks and returns their results; `together`: merges the results of all workers for one
        task."""
        self._graph = StageGraph(client, addresses)
        self._ranks, self._token, self._results, self._together = range(len(addresses)), token, results, together
        # A block number may occur in several stretches of a run.
        self._id = uuid.uuid4().hex[:8]

    def submit(self, stage: str, number: int, after: list[list[str]]) -> list[str]:
        return [
            self._graph.add(
                f"{stage}-{number}-{rank}-{self._id}", run_worker_stage, stage, number, self._token,
                after=[keys[rank] for keys in after],
            )
            for rank in self._ranks
        ]  # fmt: skip

    def result(self, keys: list[str]) -> StageResult:
        self._graph.send()
        return self._together(self._results([self._graph.futures.pop(key) for key in keys]))

    def settle(self, keys: list[list[str]]) -> None:
        """Does not wait for running tasks: they may be stuck in a collective, and their processes are about to end.
        Tasks that have not started are cancelled when their futures are released."""


def _pause(token: str, why: str | None, dask_worker: Any) -> None:
    dask_worker.plugins["pipeline"].of(token).pause(why)
