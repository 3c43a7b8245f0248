"""Sums over workers: right, the same on all, and counted; a model's values in one vector."""

import pytest
import torch
from support.oracle.odd_model import float_buffers, make_model, parameters_of

from benchmarks.kstep.in_process import in_machines, in_process, together
from pipeline.comm.collective import Flat

GROUPS = {
    "1": lambda: in_process(1),
    "3": lambda: in_process(3),
    "2x2": lambda: in_machines(2, 2),
    "3x4": lambda: in_machines(3, 4),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_sum_is_right_and_the_same_on_all_workers(name):
    workers = GROUPS[name]()
    assert [worker.rank for worker in workers] == list(range(len(workers)))
    assert {worker.world for worker in workers} == {len(workers)}
    for repeat in range(5):
        vectors = [torch.randn(48) for _ in workers]
        expected = torch.stack(vectors).double().sum(0)
        together([lambda w=w, v=v: w.all_reduce(v, "merge") for w, v in zip(workers, vectors, strict=True)])
        torch.testing.assert_close(vectors[0].double(), expected, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(vectors[0], vector) for vector in vectors), f"repeat {repeat}"


@pytest.mark.parametrize("num_buffers", [0, 5, 16, 40, 48])
def test_buffers_are_counted_separately_on_two_levels(num_buffers):
    workers = in_machines(2, 4)
    together([lambda w=w: w.all_reduce(torch.ones(48), "merge", num_buffers) for w in workers])
    between = [worker.outer.bytes for worker in workers[:4]]
    assert sum(sent["buffers"] for sent in between) == 4 * num_buffers
    assert sum(sent["merge"] for sent in between) == 4 * (48 - num_buffers)
    assert all(sent["merge"] + sent["buffers"] == 4 * 12 for sent in between)


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
