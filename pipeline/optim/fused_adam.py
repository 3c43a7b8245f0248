"""torch's fused Adam without `torch.optim.Optimizer`. On their first call, the methods of that class import
torch._dynamo (and with it sympy), which would add 2 to 3 s to the start of every training process."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam


class FusedAdam:
    """Steps and state of `torch.optim.Adam(parameters, lr, betas, eps, fused=True)`, bit for bit."""

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
