"""The dense model and its optimizer, put down and taken up again: training goes on bit for bit."""

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from pipeline.optim.dense import FusedAdam
from pipeline.storage.files import tensors
from pipeline.training.dense_state import dense_bytes, dense_state, load_dense, model_state, save_dense


def make_model(width=4, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))
    return model, FusedAdam(model.parameters(), 0.01, (0.9, 0.999), 1e-8)


def train(model, optimizer, steps, seed):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        inputs = torch.from_numpy(rng.random((8, 3), np.float32))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def values(model, optimizer):
    return [(name, array.dtype, array.tolist()) for name, array in dense_state(model, optimizer)]


def through_a_file(saved):
    return safetensors.numpy.load(b"".join(bytes(part) for part in tensors(saved)))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_training_goes_on_with_the_same_bits_after_loading(steps):
    one, other = make_model(), make_model(seed=1)
    train(*one, steps, 1)
    load_dense(*other, through_a_file(save_dense(*one)))
    assert values(*other) == values(*one)
    for both in (one, other):
        train(*both, 4, 2)
    assert values(*other) == values(*one)
    assert all(np.array_equal(a, b) for a, b in zip(*(model_state(m[0]).values() for m in (one, other)), strict=True))


def test_loaded_state_has_memory_of_its_own():
    one, other = make_model(), make_model(seed=1)
    train(*one, 2, 1)
    saved = save_dense(*one)
    load_dense(*other, saved)
    before = values(*other)
    train(*one, 1, 3)
    for array in saved.values():
        array[...] = 0
    assert values(*other) == before


@pytest.mark.parametrize("part", ["model/0.weight", "model/1.running_mean", "model/3.bias"])
def test_the_state_of_another_model_is_refused(part):
    one = make_model()
    saved = save_dense(*one)
    with pytest.raises(ValueError, match="the dense part of the commit does not fit: 0"):
        load_dense(*make_model(width=5), saved)
    less = {name: array for name, array in saved.items() if name != part}
    with pytest.raises(ValueError, match=part.removeprefix("model/")):
        load_dense(*make_model(), less)


def test_all_dense_state_is_saved_within_the_estimated_bytes():
    model, optimizer = make_model()
    assert not [name for name in save_dense(model, optimizer) if name.startswith("optimizer/")]
    train(model, optimizer, 1, 0)
    saved = save_dense(model, optimizer)
    names = [name for name, _ in model.named_parameters()]
    expected = {f"optimizer/{key}/{name}" for key in ("exp_avg", "exp_avg_sq", "step") for name in names}
    assert saved.keys() == expected | {f"model/{name}" for name in model.state_dict()}
    # A commit counts on so much space; the steps, four bytes a parameter, are within what a manifest may take.
    assert sum(array.nbytes for array in saved.values()) - 4 * len(names) <= dense_bytes(model)


def test_optimizer_state_of_an_unknown_parameter_is_refused():
    one = make_model()
    train(*one, 1, 0)
    with pytest.raises(ValueError, match="differs from this one: it has optimizer/step/wing"):
        load_dense(*make_model(), save_dense(*one) | {"optimizer/step/wing": np.ones(1, np.float32)})
