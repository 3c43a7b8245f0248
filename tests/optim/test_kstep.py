"""k-step Adam of many replicas against plain loops, bit for bit; and what it sends."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.depth import examples
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
    take_step,
)
from support.oracle.replicas import Replicas
from torch import nn

from benchmarks.kstep.in_process import in_machines, in_process, together
from pipeline.optim.dense import Dense
from pipeline.optim.kstep import KStepDense, dense_of
from pipeline.settings.optimizer import DenseAdam, KStep, Optimizer
from pipeline.training.dense_state import dense_bytes, dense_state, load_dense, merge_dense, save_dense

VARIANTS = [
    {"denominator": "frozen", "form": "adam", "merged": "xv"},
    {"denominator": "frozen", "form": "adam", "merged": "xmv"},
    {"denominator": "frozen", "form": "amsgrad", "merged": "xv"},
    {"denominator": "frozen", "form": "amsgrad", "merged": "xmv"},
    {"denominator": "local", "merged": "x"},
    {"denominator": "local", "merged": "xv"},
    {"denominator": "local", "merged": "xmv"},
]


def compare(models, denses, plain, step):
    for w, (model, dense) in enumerate(zip(models, denses, strict=True)):
        for p, parameter in enumerate(parameters_of(model)):
            held = dense.state[parameter]
            assert torch.equal(parameter, plain.x[w][p]), f"x, step {step}"
            assert torch.equal(held["m"], plain.m[w][p]), f"m, step {step}"
            assert torch.equal(held["v"], plain.v[w][p]), f"v, step {step}"
            assert "v_hat" not in held or torch.equal(held["v_hat"], plain.v_hat[p]), f"v_hat, step {step}"
        for buffer, expected in zip(float_buffers(model), plain.buffers[w], strict=True):
            assert torch.equal(buffer, expected), f"buffers, step {step}"
        for (_, found), average in zip(dense.average.items() if dense.average else (), plain.averages, strict=False):
            assert np.array_equal(found, average), f"average, step {step}"


def run_both(merge, adam, collectives, machine, num_steps):
    models, denses = make(merge, collectives, adam)
    plain = Replicas(
        [p.detach() for p in parameters_of(models[0])], float_buffers(models[0]), len(models), adam, merge, machine
    )
    twins = [make_model() for _ in models]
    warm_up = round(adam.warm_up_epochs * STEPS_OF_EPOCH)
    for step in range(1, num_steps + 1):
        for w, twin in enumerate(twins):
            for parameter in parameters_of(twin):
                parameter.grad = torch.zeros_like(parameter)
            for buffer, value in zip(float_buffers(twin), plain.buffers[w], strict=True):
                buffer.copy_(value)
            made_up(twin, step, w)
            plain.buffers[w] = [buffer.clone() for buffer in float_buffers(twin)]
        shares = [[parameter.grad.clone() for parameter in parameters_of(twin)] for twin in twins]
        lr = adam.lr * min(1.0, step / warm_up) if warm_up else adam.lr
        plain.step(step, shares, lr, step % STEPS_OF_EPOCH == 0)
        step_all(models, denses, step)
        compare(models, denses, plain, step)


@examples(10, 40)
@given(
    st.sampled_from(VARIANTS), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.booleans(),
    st.sampled_from([0.0, 0.03]), st.sampled_from([0.0, 0.5]), st.sampled_from([None, 1, 5]),
)  # fmt: skip
def test_kstep_adam_agrees_with_plain_loops_over_replicas(
    variant, num_workers, k, start, bias_correction, l2, warm_up_epochs, average
):
    merge = KStep(k=k, start=start, bias_correction=bias_correction, **variant)
    adam = DenseAdam(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-4, l2=l2, warm_up_epochs=warm_up_epochs, average=average)
    run_both(merge, adam, in_process(num_workers), 1, 2 * STEPS_OF_EPOCH + 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("inner", [1, 2])
def test_two_levels_agree_with_plain_loops(variant, inner):
    merge = KStep(k=4, start=2, inner=inner, **variant)
    run_both(merge, DenseAdam(lr=0.03, beta2=0.95, average=6), in_machines(3, 2), 2, 2 * STEPS_OF_EPOCH)


def test_one_worker_with_k_1_is_adam_without_bias_correction():
    adam = DenseAdam(lr=0.01, eps=1e-5)
    (model,), denses = make(KStep(k=1), in_process(1), adam)
    x = [parameter.detach().clone() for parameter in parameters_of(model)]
    m, v = ([torch.zeros_like(w) for w in x] for _ in range(2))
    for step in range(1, 12):
        step_all([model], denses, step)
        for p, parameter in enumerate(parameters_of(model)):
            g = parameter.grad
            m[p] = 0.9 * m[p] + (1 - 0.9) * g
            v[p] = 0.999 * v[p] + (1 - 0.999) * (g * g)
            x[p] = x[p] - 0.01 * (m[p] / (v[p].sqrt() + 1e-5))
            assert torch.equal(parameter, x[p]), f"step {step}"


def test_merged_v_gives_the_same_denominator_as_local_v():
    adam = DenseAdam(beta2=0.95)
    models, denses = make(KStep(k=3, start=1), in_process(2), adam)
    stays = [0.0, 0.0]
    for step in range(1, 4):
        step_all(models, denses, step)
        squares = [parameters_of(model)[1].grad.double() ** 2 for model in models]
        stays = [0.95 * v + 0.05 * square for v, square in zip(stays, squares, strict=True)]
    held = denses[0].state[parameters_of(models[0])[1]]["v_hat"]
    torch.testing.assert_close(held.double(), (stays[0] + stays[1]) / 2, rtol=1e-5, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_replicas_are_equal_after_a_merge_even_without_examples(variant):
    models, denses = make(KStep(k=3, start=2, **variant), in_process(3))
    for step in range(1, 3 * STEPS_OF_EPOCH + 1):
        step_all(models, denses, step, from_data)
        merged = denses[0].merges(step, step % STEPS_OF_EPOCH == 0)
        assert merged == (step <= 2 or step % 3 == 0 or step % STEPS_OF_EPOCH == 0)
        first, *others = ([*parameters_of(model), *float_buffers(model)] for model in models)
        same = [all(map(torch.equal, first, other)) for other in others]
        assert same == [merged, merged], f"step {step}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_workers_send_exactly_the_bytes_of_their_merges(variant):
    collectives = in_process(2)
    models, denses = make(KStep(k=4, start=3, **variant), collectives)
    for step in range(1, 17):
        step_all(models, denses, step)
    parameters, buffers = sizes(models[0])
    # 1, 2, 3, every fourth, and after both epochs.
    merges = len({1, 2, 3, 4, 8, 12, 16, 7, 14})
    for collective in collectives:
        assert collective.bytes["merge"] == 4 * merges * parameters * len(variant["merged"])
        assert collective.bytes["buffers"] == 4 * merges * buffers
        assert collective.messages == {"merge": merges * (2 if variant["denominator"] == "frozen" else 1)}


def test_a_worker_sends_other_machines_its_share_of_a_merge():
    collectives = in_machines(2, 2)
    models, denses = make(KStep(k=4, start=1, inner=1), collectives)
    for step in range(1, 5):
        step_all(models, denses, step)
    parameters, buffers = sizes(models[0])
    for collective in collectives:
        assert collective.inner.bytes["dense"] == 4 * 4 * parameters
        sent = collective.outer.bytes
        assert sent["merge"] + sent["buffers"] == 4 * 2 * (2 * parameters + buffers) / 2
    assert sum(c.outer.bytes["buffers"] for c in collectives[:2]) == 4 * 2 * buffers


@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_training_resumes_bit_for_bit_from_each_workers_state(variant):
    merge = variant and KStep(k=4, start=2, **variant)

    def values(models, denses):
        return [
            [(name, array.tolist()) for name, array in dense_state(m, d.optimizer)]
            for m, d in zip(models, denses, strict=True)
        ]

    one, other = (make(merge, in_process(2), seed=seed) for seed in range(2))
    for step in range(1, 7):
        step_all(*one, step, from_data)
    for both in zip(*one, *other, strict=True):
        saved = {name: array.copy() for name, array in save_dense(both[0], both[1].optimizer).items()}
        load_dense(both[2], both[3].optimizer, saved)
        for array in saved.values():
            array[...] = 0
    assert values(*one) == values(*other)
    for step in range(7, 14):
        for both in (one, other):
            step_all(*both, step, from_data)
    assert values(*one) == values(*other)


def test_a_commit_has_room_for_the_state_of_a_replica():
    (model,), (dense,) = make(KStep(k=2), in_process(1))
    merge = Optimizer(merge=KStep(k=2))
    assert sum(array.nbytes for array in save_dense(model, dense.optimizer).values()) <= dense_bytes(
        model, merge.numbers_a_parameter
    )


def test_another_number_of_workers_begins_with_the_mean_of_all():
    models, denses = make(KStep(k=4, start=2), in_process(3))
    for step in range(1, 7):
        step_all(models, denses, step)
    saved = [save_dense(model, dense.optimizer) for model, dense in zip(models, denses, strict=True)]
    merged = merge_dense(saved)
    (model,), (dense,) = make(KStep(k=4, start=2), in_process(1), seed=1)
    load_dense(model, dense.optimizer, merged)
    for name, array in save_dense(model, dense.optimizer).items():
        expected = np.mean([one[name].astype(np.float64) for one in saved], axis=0)
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7, err_msg=name)
        assert array.dtype == saved[0][name].dtype
        assert "v_hat" not in name or np.array_equal(array, saved[2][name]), "what all have alike was rounded"


def test_the_state_of_another_variant_is_refused():
    models, denses = make(KStep(k=4, **VARIANTS[0]), in_process(1))
    saved = save_dense(models[0], denses[0].optimizer)
    (model,), (dense,) = make(KStep(k=4, **VARIANTS[4]), in_process(1))
    with pytest.raises(ValueError, match=r"for unused, .*: it has \['m', 'v', 'v_hat'\], expected \['m', 'v'\]"):
        load_dense(model, dense.optimizer, saved)


@pytest.mark.parametrize(
    ("what", "fields", "message"),
    [
        ("merge", {"k": 4, "merged": "x"}, 'use "xv", "xmv" or denominator "local"'),
        ("merge", {"k": 4, "denominator": "local", "form": "amsgrad"}, 'use "adam", or denominator "frozen"'),
        ("merge", {"k": 4, "inner": 3}, "inner is 3 and k is 4"),
        ("merge", {"k": 0}, "greater than or equal to 1"),
        ("merge", {"k": 4, "start": 0}, "greater than or equal to 1"),
        ("max_grad_norm", 1.0, "max_grad_norm needs the gradient of the whole batch"),
        ("dense", {"eps_place": "keras"}, 'set dense.eps_place to "torch"'),
    ],
)
def test_settings_that_make_no_sense_are_refused(what, fields, message):
    with pytest.raises(ValidationError, match=message):
        Optimizer.model_validate({"merge": {"k": 4, "bias_correction": True}} | {what: fields})


def test_two_levels_need_several_machines_of_a_suitable_size():
    with pytest.raises(ValueError, match="the 2 workers are not on several machines"):
        KStepDense(make_model(), Optimizer(merge=KStep(k=4, inner=2)), 1, in_process(2)[0])
    with pytest.raises(ValueError, match="3 workers are on this machine"):
        in_machines(2, 3)


def test_a_model_without_parameters_takes_a_step():
    denses = [
        dense_of(nn.Module(), Optimizer(merge=merge), 1, one) for merge in (None, KStep(k=2)) for one in in_process(2)
    ]
    for pair in (denses[:2], denses[2:]):
        together([lambda dense=dense: take_step(dense, 1, lambda: None) for dense in pair])


def test_without_merge_settings_replicas_stay_synchronous():
    assert isinstance(dense_of(make_model(), Optimizer(), 1, in_process(2)[0]), Dense)
