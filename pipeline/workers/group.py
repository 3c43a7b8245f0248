"""The process group of a run's workers: every collective of a worker goes through here, and is counted.

A worker issues all of them from one thread, `train`'s, in an order that the block alone fixes: two threads that use one
gloo group get wrong sums without an error.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

GLOO: Any = dist.ProcessGroupGloo
KINDS = ("keys", "rows", "gradients", "dense", "buffers", "merge", "agreement")


class Disconnected(RuntimeError):
    """Another worker is gone, or did not come in time."""


class OutOfOrder(RuntimeError):
    """Workers met in collectives that do not belong together."""


@dataclass(slots=True)
class Traffic:
    """Payload that a worker sent to others, and in how many messages. An all-reduce counts its tensor once."""

    num_bytes: int = 0
    messages: int = 0


class Store:
    """Where workers of a new group find each other: a server in the process of the first one."""

    def __init__(self, host: str, port: int = 0, serves: bool = False, timeout_seconds: float = 120.0) -> None:
        self.host = host
        self._store = dist.TCPStore(
            host, port, is_master=serves, wait_for_workers=False,
            timeout=datetime.timedelta(seconds=timeout_seconds),
        )  # fmt: skip

    @property
    def port(self) -> int:
        return int(self._store.port)

    def under(self, prefix: str) -> dist.Store:
        """A part of it that no earlier group has written to."""
        return dist.PrefixStore(prefix, self._store)


class Group:
    """One worker's end of it. Used by one thread."""

    def __init__(
        self, store: Store, name: str, rank: int, world: int, interface: str = "", timeout_seconds: float = 120.0,
        check: bool = False, traffic: dict[str, Traffic] | None = None,
    ) -> None:  # fmt: skip
        """Returns when all of `world` workers have come. `interface`: of the network; by default the host name's.
        `check`: before each collective, compare what all workers are about to do. `traffic`: what counts, if it is to
        be counted with another group's. RuntimeError: they did not come."""
        self.rank, self.world = rank, world
        self._check = check
        self._sequence = 0
        self.traffic = {kind: Traffic() for kind in KINDS} if traffic is None else traffic
        # Not torch's default group, of which a process has one: tests have all workers in one process.
        options = GLOO._Options()
        options._timeout = datetime.timedelta(seconds=timeout_seconds)
        options._devices = [GLOO.create_device(**({"interface": interface} if interface else {"hostname": store.host}))]
        self._gloo = GLOO(store.under(name), rank, world, options)

    def all_reduce(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """The sum over all workers, in place, with the same bits on all. The last `num_buffers` numbers are counted as
        those of the model's buffers."""
        self._meet(kind)
        self._count_vector(kind, tensor, num_buffers)
        # Each sums a part, in the order of ranks, and sends it to all. gloo's own all-reduce takes 2 to 4 ms for small
        # tensors on loopback, and its all-to-all a tenth of that.
        numbers = tensor.view(-1)
        sizes = [len(part) for part in np.array_split(np.empty(len(numbers), np.int8), self.world)]
        own = sizes[self.rank]
        parts = numbers.new_empty(self.world * own)
        self._wait(self._gloo.alltoall_base, parts, numbers, [own] * self.world, sizes)
        total, *others = parts.view(self.world, own)
        for other in others:
            total += other
        self._wait(self._gloo.alltoall_base, numbers, total.repeat(self.world), sizes, [own] * self.world)

    def reduce_scatter(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> Tensor:
        """See `pipeline.optim.collective.Group`."""
        self._meet(kind)
        self._count_vector(kind, tensor, num_buffers)
        parts = list(tensor.chunk(self.world))
        own = parts[self.rank]
        self._wait(self._gloo.reduce_scatter, [own], [[part.clone() for part in parts]])
        return own

    def all_gather(self, tensor: Tensor, kind: str, num_buffers: int = 0) -> None:
        """See `pipeline.optim.collective.Group`."""
        self._meet(kind)
        parts = list(tensor.chunk(self.world))
        self._wait(self._gloo.allgather, [parts], [parts[self.rank].clone()])

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Of a few numbers of each worker."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        self.all_reduce(tensor, "agreement")
        return list(tensor.tolist())

    def all_to_all(
        self, send: Tensor, send_W: Sequence[int], receive: Tensor, receive_W: Sequence[int], kind: str
    ) -> None:
        """Rows of `send` [sum(send_W), ...] to each worker, and into `receive` those of each, in the order of ranks."""
        self._meet(kind)
        others = sum(send_W) - send_W[self.rank]
        messages = sum(1 for rank, rows in enumerate(send_W) if rows and rank != self.rank)
        self.count(kind, others * (send.numel() // max(1, len(send))) * send.element_size(), messages)
        self._wait(self._gloo.alltoall_base, receive, send, list(receive_W), list(send_W))

    def _meet(self, kind: str) -> None:
        self._sequence += 1
        if not self._check:
            return
        mine = torch.tensor([self._sequence, KINDS.index(kind)])
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        self._wait(self._gloo.allgather, [everyone], [mine])
        if any(not torch.equal(mine, other) for other in everyone):
            met = ", ".join(
                f"worker {rank}: {KINDS[k]} as number {n}" for rank, (n, k) in enumerate(np.array(everyone))
            )
            raise OutOfOrder(f"workers are not at the same collective: {met}")

    def _wait(self, collective: Callable[..., Any], *args: Any) -> None:
        try:
            collective(*args).wait()
        except RuntimeError as error:
            raise Disconnected(str(error)) from error

    def _count_vector(self, kind: str, tensor: Tensor, num_buffers: int) -> None:
        self.count(kind, (tensor.numel() - num_buffers) * tensor.element_size(), 1)
        self.count("buffers", num_buffers * tensor.element_size(), 0)

    def count(self, kind: str, num_bytes: int, messages: int) -> None:
        """Payload that goes, or went another way, to other workers."""
        traffic = self.traffic[kind]
        traffic.num_bytes += num_bytes
        traffic.messages += messages
