import pytest
import torch

from pipeline.optim.dense import FusedAdam

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
