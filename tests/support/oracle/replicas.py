"""k-step Adam by its definition: replicas in one process, one tensor at a time, in plain loops.

Shares no code with the product. `x[w][p]` is parameter p of worker w.
"""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = list[Tensor]


def add_up(tensors: Tensors) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def zeros(like: Tensors) -> Tensors:
    return [torch.zeros_like(tensor) for tensor in like]


class Replicas:
    """Replicas of a model. `adam`, `merge`: settings; `machine`: number of workers per machine."""

    def __init__(self, x: Tensors, buffers: Tensors, num_workers: int, adam, merge, machine: int = 1) -> None:
        self.adam, self.merge, self.machine, self.workers = adam, merge, machine, range(num_workers)
        self.x = [[tensor.clone() for tensor in x] for _ in self.workers]
        self.buffers = [[tensor.clone() for tensor in buffers] for _ in self.workers]
        self.m = [zeros(x) for _ in self.workers]
        self.v = [zeros(x) for _ in self.workers]
        self.v_hat = zeros(x)
        self.averages = [tensor.clone() for tensor in x]

    def step(self, t: int, shares: list[Tensors], lr: float, last_of_epoch: bool) -> None:
        adam, merge = self.adam, self.merge
        correct1 = 1 - adam.beta1**t if merge.bias_correction else 1
        correct2 = 1 - adam.beta2**t if merge.bias_correction else 1
        merging = t <= merge.start or t % merge.k == 0 or last_of_epoch
        parameters = range(len(self.v_hat))
        for w in self.workers:
            for p in parameters:
                g = self.own_gradient(shares, w, p) + self.x[w][p] * adam.l2
                self.m[w][p] = self.m[w][p] * adam.beta1 + g * (1 - adam.beta1)
                self.v[w][p] = self.v[w][p] * adam.beta2 + g * g * (1 - adam.beta2)
        if merging and merge.denominator == "frozen":
            self.average(self.v)
            if "m" in merge.merged:
                self.average(self.m)
            for p in parameters:
                v = self.v[0][p] / correct2
                self.v_hat[p] = torch.maximum(self.v_hat[p], v) if merge.form == "amsgrad" else v
        for w in self.workers:
            for p in parameters:
                v_hat = self.v_hat[p] if merge.denominator == "frozen" else self.v[w][p] / correct2
                self.x[w][p] = self.x[w][p] - self.m[w][p] / (v_hat.sqrt() + adam.eps) * (lr / correct1)
        if merging:
            self.average(self.x)
            self.average(self.buffers)
            if merge.denominator == "local" and "v" in merge.merged:
                self.average(self.v)
            if merge.denominator == "local" and "m" in merge.merged:
                self.average(self.m)
            if adam.average:
                share = min(1.0, (1 if t <= merge.start else merge.k) / min(t, adam.average))
                self.averages = [a + (x - a) * share for a, x in zip(self.averages, self.x[0], strict=True)]
        elif (merge.inner or 1) > 1 and t % merge.inner == 0:
            for first in range(0, len(self.workers), self.machine):
                self.average(self.x, range(first, first + self.machine))

    def own_gradient(self, shares: list[Tensors], w: int, p: int) -> Tensor:
        """Gradient of the worker's own examples or, if gradients are summed within a machine, of its machine's
        examples."""
        if self.merge.inner != 1:
            return shares[w][p] * len(shares)
        first = w - w % self.machine
        total = add_up([shares[other][p] for other in range(first, first + self.machine)])
        return total * (len(shares) // self.machine)

    def average(self, values: list[Tensors], workers: range | None = None) -> None:
        """Average the values of these workers, or of all workers. Sums are taken first within each machine, then over
        machines."""
        workers = workers or self.workers
        machines = [workers[at : at + self.machine] for at in range(0, len(workers), self.machine)]
        for p in range(len(values[0])):
            total = add_up([add_up([values[w][p] for w in machine]) for machine in machines])
            for w in workers:
                values[w][p] = total / len(workers)
