"""Process group of a run's workers. Every collective of a worker goes through it and is counted.

A worker issues all collectives from one thread, that of `train`, in an order that depends only on the block: if two
threads used one gloo group, sums would be silently wrong.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.comm.collective import take_all_steps
from pipeline.machine.stopwatch import part
from pipeline.records import Rank

GLOO: Any = dist.ProcessGroupGloo
NCCL_SETTINGS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Settings of torch's watchdog: if a collective fails or is late, it ends the process without cleanup (which can hang)
and without a report. A GPU that waits for a lost GPU waits forever, and so does its host, so the process must end in
any case. The driver kills the process within seconds if it has noticed the lost worker; otherwise it notices the loss
when this process ends."""
OTHER_WORKERS = "other workers"
TRAFFIC_KINDS = ("keys", "rows", "gradients", "dense", "buffers", "merge", "agreement")


class Disconnected(RuntimeError):
    """Raised if another worker is gone or did not join in time."""


class OutOfOrder(RuntimeError):
    """Raised if workers are about to run different collectives."""


@contextmanager
def lost_others() -> Iterator[None]:
    """Context that converts a RuntimeError from torch to Disconnected."""
    try:
        yield
    except RuntimeError as error:
        raise Disconnected(str(error)) from error


@dataclass(slots=True)
class Traffic:
    """Number of payload bytes and of messages that a worker sent to others. An all-reduce counts its tensor once."""

    num_bytes: int = 0
    messages: int = 0


class Store:
    """Key-value store through which the workers of a new group find each other: a file if they share a folder, else a
    server in the process of the first worker."""

    def __init__(
        self, host: str, port: int = 0, serves: bool = False, timeout_seconds: float = 120.0, folder: str = ""
    ) -> None:
        """`serves`: True if this process runs the server. It listens only on this address of the host, because anyone
        who can reach it may read and write. `folder`: folder to use instead of a server; all workers and nobody else
        must have access."""
        self.host = host
        if folder:
            self._store: Any = dist.FileStore(f"{folder}/store")
            self._store.set_timeout(datetime.timedelta(seconds=timeout_seconds))
            return
        listening = None
        if serves:
            # torch's own socket would listen on all addresses.
            family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            server = socket.socket(family, kind)
            server.bind(address)
            server.listen(socket.SOMAXCONN)
            port, listening = server.getsockname()[1], server.detach()
        self._store = dist.TCPStore(
            host, port, is_master=serves, wait_for_workers=False,
            timeout=datetime.timedelta(seconds=timeout_seconds), master_listen_fd=listening, use_libuv=not serves,
        )  # fmt: skip

    @property
    def port(self) -> int:
        return int(self._store.port)

    def under(self, prefix: str) -> dist.Store:
        """Return the part of the store under `prefix`. Each group must use a new prefix."""
        return dist.PrefixStore(prefix, self._store)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How the workers of a group reach each other."""

    interface: str = ""
    """Network interface; if empty, that of the host name."""
    timeout_seconds: float = 120.0
    check: bool = False
    """Before each collective, verify that all workers are about to run the same one."""
    on_gpus: bool = False
    """Tensors are in GPU memory, and NCCL transfers them on the current stream; no call waits for it."""


def gloo(store: Store, name: str, rank: Rank, settings: GroupSettings) -> Any:
    """Make a process group for tensors in host memory."""
    # Not torch's default group: a process has only one, and tests run all workers in one process.
    options = GLOO._Options()
    options._timeout = datetime.timedelta(seconds=settings.timeout_seconds)
    where = {"interface": settings.interface} if settings.interface else {"hostname": store.host}
    options._devices = [GLOO.create_device(**where)]
    return GLOO(store.under(name), rank.number, rank.world, options)


def nccl(store: Store, name: str, rank: Rank, settings: GroupSettings) -> Any:
    """Make a process group for tensors in GPU memory, one GPU per process."""
    for variable, value in NCCL_SETTINGS.items():
        os.environ.setdefault(variable, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = datetime.timedelta(seconds=settings.timeout_seconds)
    return dist.ProcessGroupNCCL(store.under(name), rank.number, rank.world, options)


class Group:
    """One worker's member of a process group. Only one thread may use it."""

    def __init__(
        self, store: Store, name: str, rank: Rank, settings: GroupSettings, traffic: dict[str, Traffic] | None = None
    ) -> None:
        """Wait until all workers have joined. `traffic`: counters shared with another group. Raises RuntimeError if a
        worker does not join in time."""
        self.rank, self.world = rank.number, rank.world
        self._check = settings.check
        self._sequence = 0
        self.traffic = {kind: Traffic() for kind in TRAFFIC_KINDS} if traffic is None else traffic
        self._backend = self._host = gloo(store, name, rank, settings)
        if settings.on_gpus:
            self._backend = nccl(store, f"{name}/gpus", rank, settings)
            # NCCL connects at the first collective. Run one now to notice a missing worker.
            self._send_parts(torch.zeros(self.world, device="cuda"))()
            torch.cuda.synchronize()

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """Replace the tensor by its sum over all workers, with the same bits on each. The last `num_buffers` numbers
        count as the model's buffers."""
        take_all_steps(self.summing(tensor, kind, num_buffers))

    def summing(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Iterator[None]:
        """See `pipeline.comm.collective.Collective`."""
        self._meet(kind)
        self._count_vector(kind, tensor, num_buffers)
        # Each worker sums one part, in rank order, and sends it to all. For small tensors on loopback, gloo's
        # all-reduce takes 2 to 4 ms, its all-to-all a tenth of that.
        numbers = tensor.view(-1)
        own_sum = self._send_parts(numbers)
        yield
        gathered = self._send_own(numbers, own_sum())
        yield
        gathered()

    def reduce_scatter(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Tensor:
        """See `pipeline.comm.collective.LevelGroup`."""
        self._meet(kind)
        self._count_vector(kind, tensor, num_buffers)
        return tensor.chunk(self.world)[self.rank].copy_(self._send_parts(tensor)())

    def all_gather(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """See `pipeline.comm.collective.LevelGroup`."""
        self._meet(kind)
        self._send_own(tensor, tensor.chunk(self.world)[self.rank])()

    def _send_parts(self, vector: Tensor) -> Callable[[], Tensor]:
        """Send each worker its part of the vector. The returned function waits for the others' data and returns the sum
        of this worker's part over all workers, in rank order."""
        sizes = self._parts(vector)
        received = vector.new_empty(self.world * sizes[self.rank])
        arrived = self._start(self._backend.alltoall_base, received, vector, [sizes[self.rank]] * self.world, sizes)

        def own_sum() -> Tensor:
            arrived()
            total, *others = received.view(self.world, -1) if len(received) else [received]
            for other in others:
                total += other
            return total

        return own_sum

    def _send_own(self, vector: Tensor, own: Tensor) -> Callable[[], None]:
        """Send this worker's part, which may be a view of `vector`, to every worker. The returned function waits until
        `vector` contains the parts of all workers."""
        sizes = self._parts(vector)
        return self._start(self._backend.alltoall_base, vector, own.repeat(self.world), sizes, [len(own)] * self.world)

    def _parts(self, vector: Tensor) -> list[int]:
        each, more = divmod(len(vector), self.world)
        return [each + (rank < more) for rank in range(self.world)]

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Sum each of a few numbers over all workers."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        self.all_reduce(tensor, "agreement")
        return list(tensor.tolist())

    def all_to_all(
        self, send: Tensor, send_W: Sequence[int], receive: Tensor, receive_W: Sequence[int], kind: str
    ) -> None:
        """Send send_W[w] rows of `send` [sum(send_W), ...] to each worker w, and receive receive_W[w] rows from each
        into `receive`, in rank order."""
        self._meet(kind)
        others = sum(send_W) - send_W[self.rank]
        messages = sum(1 for rank, rows in enumerate(send_W) if rows and rank != self.rank)
        self.count(kind, others * (send.numel() // max(1, len(send))) * send.element_size(), messages)
        self._start(self._backend.alltoall_base, receive, send, list(receive_W), list(send_W))()

    def _meet(self, kind: str) -> None:
        self._sequence += 1
        if not self._check:
            return
        mine = torch.tensor([[self._sequence, TRAFFIC_KINDS.index(kind)]] * self.world)
        everyone, ones = torch.empty_like(mine), [1] * self.world
        self._start(self._host.alltoall_base, everyone, mine, ones, ones)()
        if not torch.equal(mine, everyone):
            met = ", ".join(
                f"worker {rank}: {TRAFFIC_KINDS[k]} as number {n}" for rank, (n, k) in enumerate(everyone.tolist())
            )
            raise OutOfOrder(f"workers are not at the same collective: {met}")

    def _start(self, collective: Callable[..., Any], *args: Any) -> Callable[[], None]:
        """Start a collective. The returned function waits until all tensors are sent and received."""
        with lost_others(), part(OTHER_WORKERS):
            work = collective(*args)

        def arrived() -> None:
            with lost_others(), part(OTHER_WORKERS):
                work.wait()

        return arrived

    def _count_vector(self, kind: str, tensor: Tensor, num_buffers: int) -> None:
        self.count(kind, (tensor.numel() - num_buffers) * tensor.element_size(), 1)
        self.count("buffers", num_buffers * tensor.element_size(), 0)

    def count(self, kind: str, num_bytes: int, messages: int) -> None:
        """Count payload sent to other workers, including payload not sent through this group."""
        traffic = self.traffic[kind]
        traffic.num_bytes += num_bytes
        traffic.messages += messages
