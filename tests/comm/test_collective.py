"""A model's values in one vector, which workers sum."""

import pytest
import torch
from support.oracle.odd_model import float_buffers, make_model, parameters_of

from pipeline.comm.collective import Flat


def test_the_model_sees_every_change_of_the_vector():
    model, same = make_model(), make_model()
    flat = Flat(model, 2)
    flat.hold_gradients(flat.vectors[0])
    flat.hold_parameters(flat.vectors[1])
    assert all(map(torch.equal, model.state_dict().values(), same.state_dict().values()))
    inputs = torch.randn(4, 3)
    for one in (model, same):
        one(inputs).sum().backward()
        for parameter in parameters_of(one)[1:]:
            parameter.data.add_(parameter.grad)
    flat.vectors[1] *= 2
    flat.buffers += 1
    for one, other in zip(parameters_of(model)[1:], parameters_of(same)[1:], strict=True):
        torch.testing.assert_close(one, other * 2)
    for one, other in zip(float_buffers(model), float_buffers(same), strict=True):
        torch.testing.assert_close(one, other + 1)


def test_every_parameter_begins_at_a_multiple_of_64_bytes():
    model = make_model()
    flat = Flat(model, 2)
    flat.hold_gradients(flat.vectors[0])
    flat.hold_parameters(flat.vectors[1])
    for parameter in parameters_of(model):
        assert parameter.data_ptr() % 64 == 0
        assert parameter.grad.data_ptr() % 64 == 0


@pytest.mark.parametrize("name", ["unused", "layers.1.running_var"])
def test_numbers_of_another_type_are_refused_with_their_name(name):
    model = make_model()
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(model.get_submodule(owner), attribute)
    tensor.data = tensor.data.double()
    with pytest.raises(ValueError, match=f"{name} of the dense model is torch.float64"):
        Flat(model, 1)
