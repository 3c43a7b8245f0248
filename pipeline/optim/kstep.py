"""k-step Adam: replicas of the dense part that take local steps and are averaged (merged) every k steps.

Zhao, Jiao, Hu, Li, Zhang and Li, arXiv 2201.05500, after Chen, Li and Li, FODS 2020. For worker i of N, at step t:

    m_i = beta1 * m_i + (1 - beta1) * g_i                     from 0
    v_i = beta2 * v_i + (1 - beta2) * g_i * g_i               from 0
    at a merge:  v_hat = mean of all v_i                      "amsgrad": the maximum of that and v_hat
    x_i = x_i - lr * m_i / (sqrt(v_hat) + eps)
    at a merge:  x_i = mean of all x_i

A merge also sets v_i to the mean. This does not change v_hat, the only use of v_i, since v is linear in the squares of
the gradients. With "local" denominators each worker uses its v_i in place of v_hat.

Q is the number of values of all parameters (see `flat`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pipeline.comm.collective import SINGLE_WORKER, Collective, Flat, TwoLevels
from pipeline.optim.dense import Average, Dense, warm_up_steps, warmed_up
from pipeline.settings.optimizer import KStep, Optimizer

M, V, X = range(NUM_VECTORS := 3)
"""Order of the vectors in the flat state; the model's buffers follow. Vectors that are merged together are adjacent."""
FIRST_MERGED = {"x": X, "xv": V, "xmv": M}


def dense_of(
    model: torch.nn.Module, optimizer: Optimizer, steps_of_epoch: int, collective: Collective = SINGLE_WORKER
) -> Dense | KStepDense:
    """Make the dense part's optimizer. Raises ValueError like its constructor."""
    if optimizer.merge:
        return KStepDense(model, optimizer, steps_of_epoch, collective)
    return Dense(model, optimizer.dense, steps_of_epoch, collective)


class KStepDense:
    """One worker's replica and its optimizer. It replaces `Dense` and, in a commit, `Dense.optimizer`."""

    def __init__(
        self, model: torch.nn.Module, optimizer: Optimizer, steps_of_epoch: int, collective: Collective = SINGLE_WORKER
    ) -> None:
        """Raises ValueError if a parameter or float buffer is not float32, or if two levels are set but machines do not
        have equal numbers of workers."""
        assert optimizer.merge, "without it there is Dense"
        self._adam, self._merge, self._collective = optimizer.dense, optimizer.merge, collective
        self._machine = _machine(self._merge, collective)
        self._warm_up_steps = warm_up_steps(self._adam, steps_of_epoch)
        self._flat = Flat(model, NUM_VECTORS)
        self._flat.hold_parameters(self._flat.vectors[X])
        self._gradient_Q, self._v_hat_Q, self._scratch_Q = (torch.zeros_like(self._flat.vectors[X]) for _ in range(3))
        self._flat.hold_gradients(self._gradient_Q)
        self.lr = self._adam.lr
        """Learning rate after the warm-up."""
        self.average = Average(model, self._adam.average) if self._adam.average else None
        """Average of merged weights, which is the same in all replicas."""
        self.state = self._state()
        """State of each parameter, in the form of a torch optimizer's state; the tensors are views."""

    @property
    def optimizer(self) -> KStepDense:
        """Object that holds the state for a commit: this object."""
        return self

    def zero_grad(self) -> None:
        """Clear the gradients: before the backward pass, or instead of it if a worker has no examples."""
        self._gradient_Q.zero_()

    def exchanging(self) -> Iterator[None]:
        """Scale the gradient, which is that of a share of the whole batch's loss, to the mean over this worker's
        examples, in steps, like `Collective.summing`. If `inner` is 1, first sum it over the machine, to get the mean
        over the machine's examples."""
        num_shares = self._collective.world
        if self._merge.inner == 1:
            if self._flat.size:
                yield from self._machine.summing(self._gradient_Q, "dense")
            num_shares //= self._machine.world
        self._gradient_Q.mul_(num_shares)

    def regularize(self) -> None:
        """Add the L2 term to the gradients."""
        if self._adam.l2:
            self._gradient_Q.add_(torch.mul(self._flat.vectors[X], self._adam.l2, out=self._scratch_Q))

    def gradients(self) -> list[Tensor]:
        return [self._gradient_Q]

    def merges(self, step: int, last_of_epoch: bool = False) -> bool:
        """True if all workers merge at this step of the run, counted from 1."""
        return step <= self._merge.start or step % self._merge.k == 0 or last_of_epoch

    def step(self, step: int, last_of_epoch: bool = False) -> None:
        """Update the parameters, and merge if `merges` returns True. `step` is the run's step, counted from 1."""
        frozen, first = self._merge.denominator == "frozen", FIRST_MERGED[self._merge.merged]
        merges, within = self.merges(step, last_of_epoch), self._merge.inner or 1
        self._update_moments()
        if merges and frozen:
            self._mean(self._collective, first, X)
            self._refresh(step)
        self._move(step, self._v_hat_Q if frozen else self._corrected(step))
        if merges:
            self._mean(self._collective, X if frozen else first, NUM_VECTORS, self._flat.num_buffers)
            if self.average:
                self.average.add(step, 1 if step <= self._merge.start else self._merge.k)
        elif within > 1 and step % within == 0:
            self._mean(self._machine, X, NUM_VECTORS)

    def _update_moments(self) -> None:
        # Separate calls, so that every processor rounds the product before the addition (no fused multiply-add).
        m_Q, v_Q, *_ = self._flat.vectors
        g_Q, scratch_Q, beta1, beta2 = self._gradient_Q, self._scratch_Q, self._adam.beta1, self._adam.beta2
        m_Q.mul_(beta1).add_(torch.mul(g_Q, 1 - beta1, out=scratch_Q))
        v_Q.mul_(beta2).add_(torch.mul(g_Q, g_Q, out=scratch_Q).mul_(1 - beta2))

    def _refresh(self, step: int) -> None:
        """Update v_hat from the merged v."""
        v_Q = self._corrected(step)
        if self._merge.form == "amsgrad":
            torch.maximum(self._v_hat_Q, v_Q, out=self._v_hat_Q)
        else:
            self._v_hat_Q.copy_(v_Q)

    def _corrected(self, step: int) -> Tensor:
        """Return v, with bias correction if configured; valid until the scratch vector is reused."""
        v_Q = self._flat.vectors[V]
        if not self._merge.bias_correction:
            return v_Q
        return torch.div(v_Q, 1 - self._adam.beta2**step, out=self._scratch_Q)

    def _move(self, step: int, v_hat_Q: Tensor) -> None:
        lr = warmed_up(self.lr, step, self._warm_up_steps)
        if self._merge.bias_correction:
            lr /= 1 - self._adam.beta1**step
        m_Q, _, x_Q = self._flat.vectors
        denominator_Q = torch.sqrt(v_hat_Q, out=self._scratch_Q).add_(self._adam.eps)
        x_Q.sub_(torch.div(m_Q, denominator_Q, out=denominator_Q).mul_(lr))

    def _mean(self, collective: Collective, first: int, end: int, num_buffers: int = 0) -> None:
        """Replace these vectors, and the first `num_buffers` numbers that follow them, by their mean over workers."""
        size = self._flat.size
        part = self._flat.numbers[first * size : end * size + num_buffers]
        if part.numel():
            collective.all_reduce(part, "merge", num_buffers)
            part.div_(collective.world)

    def _state(self) -> dict[Tensor, dict[str, Tensor]]:
        vectors = {"m": self._flat.vectors[M], "v": self._flat.vectors[V]}
        if self._merge.denominator == "frozen":
            vectors["v_hat"] = self._v_hat_Q
        parts = {key: self._flat.parts(vector) for key, vector in vectors.items()}
        return {
            parameter: {key: parts[key][number] for key in parts}
            for number, parameter in enumerate(self._flat.parameters)
        }


def _machine(merge: KStep, collective: Collective) -> Collective:
    """Workers on this worker's machine if there are two levels, else this worker alone."""
    if not merge.inner or collective.world == 1:
        return SINGLE_WORKER
    if not isinstance(collective, TwoLevels):
        raise ValueError(
            f"optimizer.merge.inner is {merge.inner}, but the {collective.world} workers are not on several machines "
            "with the same number on each; leave optimizer.merge.inner out"
        )
    return collective.inner
