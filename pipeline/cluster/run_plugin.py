"""The code of a run in the process of one of several Dask workers: a plugin that holds the worker's part of the run,
and the functions that Dask calls in that process. `token` identifies the run; the functions raise if that run is not
open. The process has neither the module nor the file of a user's model class: the class comes as bytes.

Log records of lost connections are filtered. When a process is killed or was paused, Dask's coroutines fail. asyncio
would log a traceback for each one that is not awaited, and Dask's scheduler a critical record when it sends to a client
that is gone. The driver reports a lost worker in one line.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import platform
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shutil import disk_usage
from typing import Any, TypeVar

import cloudpickle
import psutil
from distributed import WorkerPlugin, get_worker

from pipeline.cluster.threads import stage_threads
from pipeline.comm.collective import TwoLevels
from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.data.identity import as_json, begun_in, differences
from pipeline.data.side_files import FOLDER, SideFiles, keep_side_files
from pipeline.data.source import Scoring, Source
from pipeline.device.device import Device
from pipeline.device.gpu import choose, identify
from pipeline.errors import FileChanged, LostTouch, OutOfTurn
from pipeline.machine.limits import memory_limits
from pipeline.machine.process import keep_freed_memory
from pipeline.machine.threads import share_of
from pipeline.own_code.code import is_own
from pipeline.records import Rank, StageResult
from pipeline.stages import STAGES
from pipeline.storage.files import Files
from pipeline.storage.reader import allow_many_files
from pipeline.worker.tiers import Membership, WorkerConfig
from pipeline.worker.worker import Worker
from pipeline.workflow import Workflow, kind_name

LOGGERS = ("asyncio", "distributed.scheduler")
"""Loggers that emit such records. A filter on a logger works with any handlers of the process."""
CONNECTIONS = ("distributed.", "tornado.")
"""Packages whose exceptions indicate a broken connection."""


def silence_lost_connections() -> None:
    """Stop asyncio and Dask from logging exceptions of broken connections in this process. May be called twice."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_no_lost_connection)


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not kind.__module__.startswith(CONNECTIONS)


def to_bytes(kind: Any) -> bytes:
    """Pickle a model class, with the code of all modules outside this package and the installed libraries. Raises
    ValueError if it refers to something that cannot be pickled."""
    left = sys.modules.keys() - cloudpickle.list_registry_pickle_by_value()
    own = {m.__name__: m for m in [*sys.modules.values()] if is_own(m) and m.__name__ in left}
    for module in own.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(kind))
    except Exception as error:
        raise ValueError(
            f"model.kind {kind.__qualname__} cannot be sent to workers, which are separate processes: {error}; train "
            "with one worker, in this process, or import what it uses within its methods"
        ) from error
    finally:
        for module in own.values():
            cloudpickle.unregister_pickle_by_value(module)


def from_bytes(pickled: bytes) -> Any:
    """Make a class of `to_bytes`. Raises ValueError if that fails in this process."""
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise ValueError(f"model.kind cannot be made in this worker: {type(error).__name__}: {error}") from error


T = TypeVar("T")
NAME = "pipeline"
PACKAGES = ("numba", "numpy", "pyarrow", "torch", "zarr", "distributed")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Everything that a worker needs to join a run, as text, numbers and the code of the model class."""

    token: str
    rank: Rank
    owner_of_shard: tuple[int, ...]
    workflow: str
    """The workflow as JSON."""
    data: str
    """Identity of the driver's data, as JSON of `pipeline.data.identity`; every worker must read the same data."""
    model: bytes
    """The model class, from `to_bytes`; empty: every worker imports it by name."""
    hosts: tuple[str, ...]
    """Hosts of all workers, in rank order; the first one runs the store through which they find each other."""
    store_port: int
    store_folder: str = ""
    """Folder of the store, which then needs no port; empty: the store is a server."""
    scoring: Scoring | None = None
    sides: SideFiles = field(default_factory=SideFiles)
    """The files that features read, with the checksum of each."""


class RunPlugin(WorkerPlugin):
    """The part of a run that is open in a Dask worker."""

    name = NAME

    def __init__(self, ours: bool) -> None:
        """`ours`: True if the driver started this process and will end it."""
        self._ours = ours
        self.token = ""
        self.worker: Worker | None = None
        self._source: Source | None = None
        self._device: Device | None = None
        self._store: Store | None = None

    def setup(self, worker: Any) -> None:
        if self._ours:
            silence_lost_connections()
            # A terminal or a batch system sends signals to all processes. Only the driver handles them: it finishes the
            # planned blocks and commits them.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        worker.executors.update(stage_threads())

    def teardown(self, worker: Any) -> None:
        self.leave()
        # A worker of the user's own cluster continues to run, and may train again.
        for stage in STAGES:
            worker.executors.pop(stage).shutdown(wait=False)

    def serve(self, host: str, timeout_seconds: float) -> int:
        self._store = Store(host, serves=True, timeout_seconds=timeout_seconds)
        return self._store.port

    def join(self, join_request: JoinRequest, config: WorkerConfig) -> None:
        self.leave()
        workflow = read_workflow(join_request)
        self._device = device = choose(workflow.device)
        rank, host, seconds = join_request.rank, join_request.hosts[0], workflow.workers.timeout_seconds
        store = Store(host, join_request.store_port, timeout_seconds=seconds, folder=join_request.store_folder)
        on_hosts = GroupSettings(interface_of(host), seconds, workflow.workers.check_collectives)
        for_steps = replace(on_hosts, on_gpus=device.on_gpu)
        merge = workflow.optimizer.merge
        try:
            group = Group(store, join_request.token, rank, on_hosts)
            key_group = Group(store, f"{join_request.token}/keys", rank, on_hosts, group.traffic)
            on_gpus = levels = None
            if device.on_gpu:
                on_gpus = Group(store, f"{join_request.token}/steps", rank, for_steps, group.traffic)
            if merge and merge.inner:
                levels = two_levels(join_request, partial(Group, store, settings=for_steps, traffic=group.traffic))
        except RuntimeError as error:
            raise LostTouch(f"worker {rank.number} could not connect to the others: {error}") from error
        membership = Membership(rank, join_request.owner_of_shard, group, key_group, levels, on_gpus)
        threads, metrics = share_of(workflow.schedule.threads), workflow.metrics
        sides = replace(join_request.sides, folder=(folder := config.run_dir / FOLDER))
        keep_side_files(workflow.data, sides.newest, folder, Files())
        begun = replace(begun_in(json.loads(join_request.data)), sides=sides)
        source = Source(workflow.data, workflow.seed, threads, metrics, join_request.scoring, begun=begun)
        self._source = source
        if said := differences(json.loads(join_request.data), as_json(source.identity)):
            raise FileChanged(
                f"worker {rank.number} on {join_request.hosts[rank.number]} reads other data: "
                f"{'; '.join(f'data.{split}: {text}' for split, text in said.items())}",
                (None,) if source.calendar else (),
            )
        files = Files(cached=not workflow.storage.direct)
        self.worker = Worker(workflow, config, source, device, files, membership)
        self.token = join_request.token

    def leave(self) -> None:
        self.token = ""
        if self.worker:
            self.worker.close()
        if self._source:
            self._source.close()
        self.worker = self._source = None
        if self._device:
            self._device.release_memory()

    def of(self, token: str) -> Worker:
        if self.worker is None or token != self.token:
            raise OutOfTurn(
                f"the run {token} is not open in this process: its stages have state, so they are not run a second time"
            )
        return self.worker


def run_plugin() -> RunPlugin:
    found: RunPlugin = get_worker().plugins[NAME]
    return found


def two_levels(join_request: JoinRequest, meet: Callable[[str, Rank], Group]) -> TwoLevels:
    """Create the two levels of groups: the workers of this machine, and the workers at the same position on all
    machines. Raises ValueError if machines have different numbers of workers."""
    hosts, rank = join_request.hosts, join_request.rank.number
    machines = [[r for r, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]
    if len({len(ranks) for ranks in machines}) > 1:
        raise ValueError(
            f"optimizer.merge.inner needs the same number of workers on every machine, and the machines have "
            f"{[len(ranks) for ranks in machines]}; leave it out, or start the same number on each"
        )
    number = next(n for n, ranks in enumerate(machines) if rank in ranks)
    place = machines[number].index(rank)
    return TwoLevels(
        meet(f"{join_request.token}/machine{number}", Rank(place, len(machines[0]))),
        meet(f"{join_request.token}/place{place}", Rank(number, len(machines))),
    )


def read_workflow(join_request: JoinRequest) -> Workflow:
    """Read the workflow, with the driver's model class. Raises ValueError if the class cannot be created in this
    process."""
    kind = from_bytes(join_request.model) if join_request.model else None
    known = {kind_name(kind): kind} if kind else None
    return Workflow.model_validate_json(join_request.workflow, context=known)


def interface_of(host: str) -> str:
    """Name of the network interface that reaches `host`: if `host` is an address of this machine, the interface with
    that address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            return name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; the OS only selects the local address.
        probe.connect((host, 9))
        mine = probe.getsockname()[0]
    return next((n for n, all_of in psutil.net_if_addrs().items() if any(a.address == mine for a in all_of)), "")


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Description of the process and machine of a worker, reported before a run."""

    host: str
    pid: int
    versions: dict[str, str]
    threads: int
    """Threads of the Dask worker."""
    memory_limit: int
    """Dask's memory limit for this worker, in bytes; 0: no limit."""
    memory: Mapping[int, int]
    """Memory limits, in bytes, of the machine and of each control group; see `limits.memory_limits`."""
    reach: tuple[int, ...]
    """Shards whose directories exist on this machine."""
    disk: int
    """Device number (`st_dev`) of the disk of the run directory."""
    free_bytes: int
    """Free bytes on that disk, plus the reserves of an earlier session."""
    device: str
    """Model of the GPU, or "cpu"."""
    gpu: str
    """PCI address of the GPU; empty: none."""


def worker_info(run_dir: Path, folders: Sequence[str], device: str) -> WorkerInfo:
    """Describe this worker. `folders`: folders of the shards, in order, relative to the run directory; `device`: the
    setting of the workflow."""
    # This is the first function to run in the process, before any large allocation.
    keep_freed_memory()
    allow_many_files()
    worker = get_worker()
    there = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    model, gpu = identify(device)
    return WorkerInfo(
        host=worker.address.split("://")[1].rsplit(":", 1)[0],
        pid=os.getpid(),
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        threads=worker.state.nthreads,
        memory_limit=int(worker.memory_manager.memory_limit or 0),
        memory=memory_limits(),
        reach=tuple(shard for shard, folder in enumerate(folders) if (run_dir / folder).is_dir()),
        disk=there.stat().st_dev,
        free_bytes=disk_usage(there).free + sum(file.stat().st_size for file in run_dir.glob("reserve*")),
        device=model,
        gpu=gpu,
    )


def serve(host: str, timeout_seconds: float) -> int:
    """Start, in this process, the store through which all workers find each other. Returns its port."""
    return run_plugin().serve(host, timeout_seconds)


def join_run(join_request: JoinRequest, config: WorkerConfig) -> None:
    run_plugin().join(join_request, config)


def leave_run() -> None:
    run_plugin().leave()


def call_worker(token: str, method: Callable[..., T], args: Sequence[Any], named: Mapping[str, Any]) -> T:
    return method(run_plugin().of(token), *args, **named)


def run_worker_stage(stage: str, number: int, token: str, *after: StageResult) -> StageResult:
    """Run a stage on this worker. `after` exists only so that Dask waits for those tasks."""
    return run_plugin().of(token).stages.run(stage, number)
