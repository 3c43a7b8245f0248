"""The optimizer of the dense part: torch's Adam, its learning rate at each step, clipping by the gradient's norm."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.optimizer import DenseAdam

NORM_EPS = 1e-6
"""As torch.nn.utils.clip_grad_norm_ has it."""


class Dense:
    """The parameters of a model and their optimizer. A model that is nothing but its rows has one that does nothing."""

    def __init__(self, model: torch.nn.Module, adam: DenseAdam, steps_of_epoch: int) -> None:
        self._adam = adam
        self._parameters = list(model.parameters()) or [torch.nn.Parameter(torch.empty(0))]
        self._warm_up_steps = round(adam.warm_up_epochs * steps_of_epoch)
        self.lr = adam.lr
        """Once warm."""
        self.optimizer = torch.optim.Adam(
            self._parameters, lr=adam.lr, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True
        )

    def regularize(self) -> None:
        """Add the L2 term to the gradients."""
        if self._adam.l2:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self._adam.l2)

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def step(self, step: int) -> None:
        """One update, the run's number `step`, counted from 1."""
        group = self.optimizer.param_groups[0]
        group["lr"] = self.lr * min(1.0, step / self._warm_up_steps) if self._warm_up_steps else self.lr
        if self._adam.eps_place == "keras":
            group["eps"] = self._adam.eps / (1.0 - self._adam.beta2**step) ** 0.5
        self.optimizer.step()


def clip_factor(gradients: list[Tensor], most: float) -> Tensor:
    """By what gradients, together, are multiplied so that their norm is at most `most`; a scalar where they lie."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return (most / (norm + NORM_EPS)).clamp(max=1.0)
