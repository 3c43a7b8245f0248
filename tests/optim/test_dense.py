"""The dense part's optimizer: rates of each step, eps, L2, and clipping."""

import pytest
import torch

from pipeline.optim.dense import Dense, clip_factor
from pipeline.optimizer import DenseAdam

GRADIENTS = [[0.5, -2.0, 1e-6], [0.1, 1.0, -1e-7], [-0.3, 0.5, 1e-7]]


def model_of(values=(1.0, -2.0, 0.5)):
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))
    return model


def trained(adam, steps_of_epoch=1, gradients=GRADIENTS):
    model = model_of()
    dense = Dense(model, adam, steps_of_epoch)
    for step, gradient in enumerate(gradients, 1):
        model.weight.grad = torch.tensor(gradient, dtype=torch.float64)
        dense.regularize()
        dense.step(step)
    return model.weight.detach()


def test_it_differs_from_torch_s_adam():
    weight = model_of().weight
    peer = torch.optim.Adam([weight], lr=0.1, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.3)
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        peer.step()
    ours = trained(DenseAdam(lr=0.1, beta1=0.8, beta2=0.99, eps=1e-3, l2=0.3))
    torch.testing.assert_close(ours, weight.detach(), rtol=1e-12, atol=0)


def test_keras_s_eps_is_corrected_for_bias():
    weight, m, v = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, -2.0, 0.5], [0.0] * 3, [0.0] * 3))
    for step, gradient in enumerate(GRADIENTS, 1):
        g = torch.tensor(gradient, dtype=torch.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        size = 0.1 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        weight = weight - size * m / (v.sqrt() + 1e-7)
    ours = trained(DenseAdam(lr=0.1, eps=1e-7, eps_place="keras"))
    torch.testing.assert_close(ours, weight, rtol=1e-9, atol=0)


def test_the_warm_up_is_not_linear_or_never_ends():
    rates = []
    dense = Dense(model_of(), DenseAdam(lr=0.3, warm_up_epochs=1.5), 4)
    for step in range(1, 9):
        dense.step(step)
        rates.append(dense.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.3, 0.3])


def test_a_model_without_parameters_cannot_be_trained():
    dense = Dense(torch.nn.Module(), DenseAdam(l2=0.1), 1)
    dense.regularize()
    dense.step(1)
    assert dense.gradients() == []


@pytest.mark.parametrize("most", [0.1, 1.0, 100.0])
def test_gradients_are_clipped_otherwise_than_by_torch(most):
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
    for parameter, gradient in zip(parameters, (torch.tensor([1.0, -2.0, 0.1]), torch.ones(2, 2)), strict=True):
        parameter.grad = gradient.clone()
    factor = clip_factor([parameter.grad for parameter in parameters], most)
    mine = [parameter.grad * factor for parameter in parameters]
    torch.nn.utils.clip_grad_norm_(parameters, most)
    for one, parameter in zip(mine, parameters, strict=True):
        torch.testing.assert_close(one, parameter.grad)
