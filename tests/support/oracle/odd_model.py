"""A small model with every oddity that a model may have, and replicas that train in threads."""

import numpy as np
import torch
from torch import nn

from benchmarks.kstep.in_process import together
from pipeline.comm.collective import ALIGNED, take_all_steps
from pipeline.optim.kstep import dense_of
from pipeline.settings.optimizer import DenseAdam, Optimizer

STEPS_OF_EPOCH = 7


class Odd(nn.Module):
    """Model with parameters whose lengths are not multiples of a vector, an unused and a frozen parameter, and
    buffers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 1))
        self.unused = nn.Parameter(torch.ones(2, 3))
        self.fixed = nn.Parameter(torch.full((5,), 0.1), requires_grad=False)

    def forward(self, inputs_BX):
        return self.layers(inputs_BX).squeeze(1) + self.fixed.sum()


def make_model(seed=0):
    torch.manual_seed(seed)
    return Odd()


def parameters_of(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def float_buffers(model):
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def sizes(model):
    """Lengths of the vectors of all parameters and of all buffers, as sent between workers."""
    parameters = sum(-(-parameter.numel() // ALIGNED) * ALIGNED for parameter in parameters_of(model))
    return parameters, -(-sum(buffer.numel() for buffer in float_buffers(model)) // ALIGNED) * ALIGNED


def make(merge, collectives, adam=None, seed=0):
    optimizer = Optimizer(dense=adam or DenseAdam(), merge=merge)
    models = [make_model(seed) for _ in collectives]
    return models, [
        dense_of(model, optimizer, STEPS_OF_EPOCH, one) for model, one in zip(models, collectives, strict=True)
    ]


def take_step(dense, step, gradients):
    dense.zero_grad()
    gradients()
    take_all_steps(dense.exchanging())
    dense.regularize()
    dense.step(step, step % STEPS_OF_EPOCH == 0)


def made_up(model, step, worker):
    """Add values that depend only on step and worker to the gradients and buffers. The last parameter is omitted."""
    rng = np.random.default_rng((step, worker))
    for parameter in parameters_of(model)[1:]:
        parameter.grad += torch.from_numpy(
            rng.standard_normal(parameter.shape).astype(np.float32)
        ) * 10.0 ** rng.integers(-4, 2)
    for buffer in float_buffers(model):
        buffer.mul_(0.9).add_(torch.from_numpy(rng.random(buffer.shape, np.float32)), alpha=0.1)


def step_all(models, denses, step, gradients=made_up):
    def work(worker):
        take_step(denses[worker], step, lambda: gradients(models[worker], step, worker))

    together([lambda worker=worker: work(worker) for worker in range(len(models))])


def from_data(model, step, worker):
    """Compute a worker's share of the gradient of a batch of 16; worker 1 has no examples."""
    if worker == 1:
        return
    rng = np.random.default_rng((step, worker))
    inputs = torch.from_numpy(rng.standard_normal((4, 3)).astype(np.float32))
    (model(inputs).square().sum() / 16).backward()
