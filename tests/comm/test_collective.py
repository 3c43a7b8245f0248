"""Sums over workers: right, the same on all, and counted."""

import pytest
import torch

from benchmarks.kstep.in_process import in_machines, in_process, together

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
