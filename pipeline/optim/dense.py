"""Optimizer of the dense part: torch's Adam, its learning rate at each step, clipping by gradient norm, and the average
of the weights over the last steps, used by everything except training.

With several workers, each has a replica. A worker's loss is its share of the whole batch's loss, so the sum of all
workers' gradients is the gradient of the whole batch, and every replica takes the same step. Normalization over the
values of sequences (`Dice`) covers all workers; batch norm, as usual, covers only a worker's examples.

    a_1 = x_1;  a_t = a_(t-1) + (x_t - a_(t-1)) / min(t, N)

The average is the mean of x_1 .. x_t up to step N, and an exponential moving average afterwards. Buffers, such as the
running statistics of batch norm, are not averaged because they are already means over batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.optim.adam import adam

from pipeline.comm.collective import SINGLE_WORKER, Collective, Flat
from pipeline.models.dice import Dice
from pipeline.records import Array
from pipeline.settings.optimizer import DenseAdam

AVERAGE = "average/"
"""Prefix of the names of averages in a commit."""


class Average:
    """Averages of a model's trained parameters. Before the first step they equal the initial weights."""

    def __init__(self, model: torch.nn.Module, num_steps: int) -> None:
        """`num_steps`: N."""
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._num_steps = num_steps
        self._values = {name: value.detach().clone() for name, value in self._parameters.items()}
        self._shown = False

    @torch.no_grad()
    def add(self, step: int, num_steps: int = 1) -> None:
        """Add the weights after this step of the run, counted from 1, as those of the last `num_steps` steps."""
        share = min(1.0, num_steps / min(step, self._num_steps))
        for name, parameter in self._parameters.items():
            # Separate calls, so that every processor rounds the product before the addition (no fused multiply-add).
            self._values[name].add_(torch.sub(parameter, self._values[name]).mul_(share))

    @torch.no_grad()
    def show(self, wanted: bool) -> None:
        """Make the parameters hold the averages, or the plain weights again. Their memory does not move."""
        if wanted != self._shown:
            for name, parameter in self._parameters.items():
                before = parameter.clone()
                parameter.copy_(self._values[name])
                self._values[name].copy_(before)
            self._shown = wanted

    def items(self) -> Iterator[tuple[str, Array]]:
        """Names of the parameters and their averages, as views if they are in RAM. The parameters must hold the plain
        weights."""
        assert not self._shown, "the plain weights are where the averages should be"
        return ((name, value.numpy(force=True)) for name, value in self._values.items())

    @torch.no_grad()
    def load(self, saved: Mapping[str, Array]) -> None:
        """Load the averages of a commit. If the commit has none, start from the loaded weights. Raises ValueError if
        they belong to another model."""
        self._shown = False
        fill(self._parameters, self._values, saved)


def fill(parameters: Mapping[str, Tensor], into: Mapping[str, Tensor], saved: Mapping[str, Array]) -> None:
    """Copy the averages of a commit into the tensors of the same names. If the commit has none, copy `parameters`.
    Raises ValueError if they belong to another model."""
    found = {name.removeprefix(AVERAGE): value for name, value in saved.items() if name.startswith(AVERAGE)}
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    if found and {name: value.shape for name, value in found.items()} != shapes:
        raise ValueError(f"the averages of the commit do not belong to this model: {sorted(found)}, not {shapes}")
    for name, parameter in parameters.items():
        into[name].copy_(torch.from_numpy(found[name].copy()) if found else parameter)


class FusedAdam:
    """Steps and state of `torch.optim.Adam(parameters, lr, betas, eps, fused=True)`, bit for bit, without
    `torch.optim.Optimizer`: on their first call, the methods of that class import torch._dynamo (and with it sympy),
    which would add 2 to 3 s to the start of every training process."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float], eps: float) -> None:
        self._parameters = list(parameters)
        self._betas = betas
        self.lr, self.eps = lr, eps
        """Settings of the next step."""
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        """Moments and number of steps of each parameter that has had a gradient, under torch's names."""

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        moved = [parameter for parameter in self._parameters if parameter.grad is not None]
        if not moved:
            return
        states = [self.state.setdefault(parameter, {}) for parameter in moved]
        for parameter, state in zip(moved, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        with torch.no_grad():
            adam(
                moved, [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], [],
                [state["step"] for state in states],
                fused=True, amsgrad=False, beta1=self._betas[0], beta2=self._betas[1], lr=self.lr, weight_decay=0.0,
                eps=self.eps, maximize=False,
            )  # fmt: skip


NORM_EPS = 1e-6
"""Term added to the norm, as in torch.nn.utils.clip_grad_norm_."""


class Dense:
    """Parameters of a model and their optimizer. If the model has only rows, the optimizer does nothing."""

    def __init__(
        self, model: torch.nn.Module, adam: DenseAdam, steps_of_epoch: int, collective: Collective = SINGLE_WORKER
    ) -> None:
        """Raises ValueError if there are other workers and a parameter or float buffer is not float32."""
        self._adam, self._collective = adam, collective
        self._parameters = list(model.parameters()) or [torch.nn.Parameter(torch.empty(0))]
        self._warm_up_steps = warm_up_steps(adam, steps_of_epoch)
        self._flat: Flat | None = None
        if collective.world > 1:
            self._flat = Flat(model, 1)
            self._flat.hold_gradients(self._flat.vectors[0])
            for module in model.modules():
                if isinstance(module, Dice):
                    module.add_up = partial(collective.all_reduce, kind="dense")
        self.lr = adam.lr
        """Learning rate after the warm-up."""
        self.average = Average(model, adam.average) if adam.average else None
        self.optimizer = FusedAdam(self._parameters, adam.lr, (adam.beta1, adam.beta2), adam.eps)

    def zero_grad(self) -> None:
        """Clear the gradients: before the backward pass, or instead of it if a worker has no examples."""
        if self._flat:
            self._flat.vectors[0].zero_()
        else:
            self.optimizer.zero_grad()

    def exchanging(self) -> Iterator[None]:
        """Replace the gradients by their sum over all workers, and the model's float buffers by their mean, in steps,
        like `Collective.summing`."""
        if self._flat and self._flat.numbers.numel():
            yield from self._collective.summing(self._flat.numbers, "dense", self._flat.num_buffers)
            self._flat.buffers.div_(self._collective.world)

    def regularize(self) -> None:
        """Add the L2 term to the gradients."""
        if self._adam.l2:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self._adam.l2)

    def gradients(self) -> list[Tensor]:
        if self._flat:
            return self._flat.vectors
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def step(self, step: int, last_of_epoch: bool = False) -> None:
        """Update the parameters. `step` is the run's step, counted from 1."""
        self.optimizer.lr = warmed_up(self.lr, step, self._warm_up_steps)
        if self._adam.eps_place == "keras":
            self.optimizer.eps = self._adam.eps / (1.0 - self._adam.beta2**step) ** 0.5
        self.optimizer.step()
        if self.average:
            self.average.add(step)


def warm_up_steps(adam: DenseAdam, steps_of_epoch: int) -> int:
    return round(adam.warm_up_epochs * steps_of_epoch)


def warmed_up(lr: float, step: int, warm_up_steps: int) -> float:
    """Learning rate of a step, counted from 1."""
    return lr * min(1.0, step / warm_up_steps) if warm_up_steps else lr


def clip_factor(gradients: list[Tensor], maximum: float) -> Tensor:
    """Factor that scales the gradients so that their joint norm is at most `maximum`: a scalar on the gradients'
    device."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return (maximum / (norm + NORM_EPS)).clamp(max=1.0)
