"""Average of the dense part's weights over the last steps, used by everything except training.

    a_1 = x_1;  a_t = a_(t-1) + (x_t - a_(t-1)) / min(t, N)

This is the mean of x_1 .. x_t up to step N, and an exponential moving average afterwards. Buffers, such as the running
statistics of batch norm, are not averaged because they are already means over batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pipeline.records import Array

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
