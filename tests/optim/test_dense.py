"""The dense part's optimizer: torch's bits, rates of each step, eps, L2, and clipping."""

import pytest
import torch
from support.oracle.odd_model import (
    STEPS_OF_EPOCH,
    float_buffers,
    from_data,
    made_up,
    make,
    make_model,
    parameters_of,
    sizes,
    step_all,
)

from benchmarks.kstep.in_process import in_machines, in_process
from pipeline.optim.dense import Dense, FusedAdam, clip_factor
from pipeline.settings.optimizer import DenseAdam

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


def test_the_dense_optimizer_agrees_with_adam_of_torch():
    weight = model_of().weight
    peer = torch.optim.Adam([weight], lr=0.1, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.3)
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        peer.step()
    ours = trained(DenseAdam(lr=0.1, beta1=0.8, beta2=0.99, eps=1e-3, l2=0.3))
    torch.testing.assert_close(ours, weight.detach(), rtol=1e-12, atol=0)


def test_the_eps_of_keras_has_no_bias_correction():
    weight, m, v = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, -2.0, 0.5], [0.0] * 3, [0.0] * 3))
    for step, gradient in enumerate(GRADIENTS, 1):
        g = torch.tensor(gradient, dtype=torch.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        size = 0.1 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        weight = weight - size * m / (v.sqrt() + 1e-7)
    ours = trained(DenseAdam(lr=0.1, eps=1e-7, eps_place="keras"))
    torch.testing.assert_close(ours, weight, rtol=1e-9, atol=0)


def test_the_warm_up_is_linear_and_ends():
    rates = []
    dense = Dense(model_of(), DenseAdam(lr=0.3, warm_up_epochs=1.5), 4)
    for step in range(1, 9):
        dense.step(step)
        rates.append(dense.optimizer.lr)
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.3, 0.3])


@pytest.mark.parametrize("maximum", [0.1, 1.0, 100.0])
def test_gradients_are_clipped_as_by_torch(maximum):
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
    for parameter, gradient in zip(parameters, (torch.tensor([1.0, -2.0, 0.1]), torch.ones(2, 2)), strict=True):
        parameter.grad = gradient.clone()
    factor = clip_factor([parameter.grad for parameter in parameters], maximum)
    mine = [parameter.grad * factor for parameter in parameters]
    torch.nn.utils.clip_grad_norm_(parameters, maximum)
    for one, parameter in zip(mine, parameters, strict=True):
        torch.testing.assert_close(one, parameter.grad)


@pytest.mark.parametrize("collectives", [in_process(3), in_machines(2, 2)], ids=["one_level", "two_levels"])
def test_replicas_stay_equal_and_step_by_the_summed_gradients(collectives):
    models, denses = make(None, collectives, DenseAdam(lr=0.1, l2=0.3))
    alone = make_model()
    peer = torch.optim.Adam(parameters_of(alone), lr=0.1, weight_decay=0.3)
    twins = [make_model() for _ in models]
    for step in range(1, STEPS_OF_EPOCH + 2):
        for twin in twins:
            for parameter in parameters_of(twin):
                parameter.grad = torch.zeros_like(parameter)
        means = [torch.zeros_like(buffer) for buffer in float_buffers(alone)]
        for worker, twin in enumerate(twins):
            for buffer, merged in zip(float_buffers(twin), float_buffers(models[0]), strict=True):
                buffer.copy_(merged)
            made_up(twin, step, worker)
            for mean, buffer in zip(means, float_buffers(twin), strict=True):
                mean += buffer / len(twins)
        for parameter, *shares in zip(*map(parameters_of, [alone, *twins]), strict=True):
            parameter.grad = sum(share.grad for share in shares)
        peer.step()
        step_all(models, denses, step)
        for model in models:
            assert all(
                map(
                    torch.equal,
                    [*parameters_of(model), *float_buffers(model)],
                    [*parameters_of(models[0]), *float_buffers(models[0])],
                )
            )
        for ours, theirs in zip(parameters_of(models[0]), parameters_of(alone), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        for ours, mean in zip(float_buffers(models[0]), means, strict=True):
            torch.testing.assert_close(ours, mean)


def test_workers_send_one_gradient_and_the_buffers_per_step():
    collectives = in_process(2)
    models, denses = make(None, collectives)
    for step in range(1, 4):
        step_all(models, denses, step, from_data)
    parameters, buffers = sizes(models[0])
    for collective in collectives:
        assert collective.bytes == {"dense": 3 * 4 * parameters, "buffers": 3 * 4 * buffers}
        assert collective.messages == {"dense": 3}


def test_the_norm_for_clipping_is_that_of_all_workers():
    models, denses = make(None, in_process(2))
    step_all(models, denses, 1)
    gradients = torch.cat([parameter.grad.reshape(-1) for parameter in parameters_of(models[0])])
    factor = clip_factor(denses[0].gradients(), 0.5)
    torch.testing.assert_close(factor, 0.5 / (gradients.norm() + 1e-6))
    assert factor == clip_factor(denses[1].gradients(), 0.5)


SHAPES = ((3,), (4, 5), (129,), ())


def parameters(seed):
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_steps_and_state_are_those_of_torch_s_adam(eps):
    """Some parameters have no gradient at some steps, one never; rates change on the way."""
    ours, peers = parameters(0), parameters(0)
    mine = FusedAdam(ours, 0.1, (0.8, 0.99), eps)
    peer = torch.optim.Adam(peers, lr=0.1, betas=(0.8, 0.99), eps=eps, fused=True)
    for step in range(12):
        mine.zero_grad()
        peer.zero_grad()
        for number, (one, other) in enumerate(zip(ours[:3], peers[:3], strict=True)):
            if step % (number + 1) == 0:
                one.grad = torch.randn(one.shape) * 10.0 ** (step % 3 - 2)
                other.grad = one.grad.clone()
        mine.lr = peer.param_groups[0]["lr"] = 0.1 / (1 + step)
        mine.step()
        peer.step()
    for one, other in zip(ours, peers, strict=True):
        assert torch.equal(one, other)
        assert mine.state.get(one, {}).keys() == peer.state.get(other, {}).keys()
        assert all(torch.equal(value, peer.state[other][key]) for key, value in mine.state.get(one, {}).items())


def test_a_step_without_gradients_changes_nothing():
    ours = parameters(1)
    adam = FusedAdam(ours, 0.1, (0.9, 0.999), 1e-8)
    adam.step()
    assert not adam.state
    assert all(torch.equal(one, other) for one, other in zip(ours, parameters(1), strict=True))
