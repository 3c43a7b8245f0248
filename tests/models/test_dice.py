"""Dice is its equation, and with several workers the one of all their values, whoever has them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pipeline.models.dice import EPS, MOMENTUM, Dice


def made(training=True):
    torch.manual_seed(0)
    dice = Dice(3).double().train(training)
    with torch.no_grad():
        dice.alpha.copy_(torch.tensor([0.1, -0.2, 0.5]))
        dice.running_mean.copy_(torch.tensor([1.0, 0.0, -2.0]))
        dice.running_var.copy_(torch.tensor([1.0, 2.0, 0.5]))
    return dice


def values(num, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 3, generator=generator, dtype=torch.float64) * 2 + 5


class Sums:
    """Sums over threads, in the order of ranks."""

    def __init__(self, world):
        self._barrier, self._given = threading.Barrier(world, timeout=60), [None] * world

    def of(self, rank):
        def add_up(vector):
            self._given[rank] = vector.clone()
            self._barrier.wait()
            total = torch.stack(self._given).sum(0)
            self._barrier.wait()
            vector.copy_(total)

        return add_up


@pytest.mark.parametrize("parts", [(5, 4), (0, 9), (9, 0, 1), (1, 1), (1, 0), (0, 0)])
def test_workers_have_the_statistics_of_all_values(parts):
    whole, x, weights = made(), values(sum(parts)).requires_grad_(), values(sum(parts), 1)
    expected = whole(x)
    (expected * weights).sum().backward()
    sums, replicas = Sums(len(parts)), [made() for _ in parts]
    pieces = [piece.detach().clone().requires_grad_() for piece in x.split(parts)]

    def work(rank):
        replicas[rank].add_up = sums.of(rank)
        out = replicas[rank](pieces[rank])
        (out * weights.split(parts)[rank]).sum().backward()
        return out.detach()

    with ThreadPoolExecutor(len(parts)) as pool:
        outs = [*pool.map(work, range(len(parts)))]
    torch.testing.assert_close(torch.cat(outs), expected.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.cat([piece.grad for piece in pieces]), x.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sum(replica.alpha.grad for replica in replicas), whole.alpha.grad, rtol=1e-9, atol=1e-9)
    for replica in replicas:
        torch.testing.assert_close(replica.running_mean, whole.running_mean)
        torch.testing.assert_close(replica.running_var, whole.running_var)


def test_evaluation_asks_no_other_worker():
    dice = made(training=False)
    dice.add_up = None
    x, mean, variance = values(4), dice.running_mean.clone(), dice.running_var.clone()
    gate = torch.sigmoid((x - mean) / torch.sqrt(variance + EPS))
    expected = gate * x + dice.alpha * (1 - gate) * x
    torch.testing.assert_close(dice(x), expected)
    dice.add_up = pytest.fail
    torch.testing.assert_close(dice(x), expected)
    assert torch.equal(dice.running_mean, mean)


def test_running_statistics_follow_the_batches_values():
    dice, x = made(), values(7)
    mean, variance = dice.running_mean.clone(), dice.running_var.clone()
    dice(x)
    torch.testing.assert_close(dice.running_mean, (1 - MOMENTUM) * mean + MOMENTUM * x.mean(0))
    torch.testing.assert_close(dice.running_var, (1 - MOMENTUM) * variance + MOMENTUM * x.var(0))
