"""Groups of a machine and of a place, made of the run's workers; what they sum, and what each sends."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from benchmarks.kstep.in_process import in_machines, together
from pipeline.cluster.run_plugin import JoinRequest, two_levels
from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.records import Rank

SIZE, BUFFERS = 64, 8


def join_request(rank, hosts):
    return JoinRequest(
        token="run", rank=Rank(rank, len(hosts)), owner_of_shard=(0,), workflow="", data="", model=None, hosts=hosts,
        store_port=0,
    )  # fmt: skip


def vectors(world):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, generator=generator) for _ in range(world)]


@pytest.mark.parametrize("hosts", [("a", "a", "b", "b"), ("b", "a", "b", "a"), ("a", "a"), ("a", "b")])
def test_two_levels_sum_right_and_send_one_part_between_machines(hosts):
    """The workers of a machine need not have neighbouring ranks."""
    world, machines = len(hosts), list(dict.fromkeys(hosts))
    store = Store("127.0.0.1", serves=True)
    mine = vectors(world)

    def work(rank):
        at = Store("127.0.0.1", store.port)
        settings = GroupSettings("lo", 20.0, True)
        flat = Group(at, "flat", Rank(rank, world), settings)
        levels = two_levels(join_request(rank, hosts), partial(Group, at, settings=settings, traffic=flat.traffic))
        levels.all_reduce(mine[rank], "merge", BUFFERS)
        return levels, flat.traffic

    with ThreadPoolExecutor(world) as threads:
        found = list(threads.map(work, range(world)))
    expected = vectors(world)
    twins = in_machines(len(machines), world // len(machines))
    place = [(machines.index(host), hosts[:rank].count(host)) for rank, host in enumerate(hosts)]
    by_twin = {machine * (world // len(machines)) + index: rank for rank, (machine, index) in enumerate(place)}
    together(
        [lambda t=t, twin=twin: twin.all_reduce(expected[by_twin[t]], "merge", BUFFERS) for t, twin in enumerate(twins)]
    )
    total = torch.stack(vectors(world)).double().sum(0)
    for rank in range(world):
        torch.testing.assert_close(mine[rank].double(), total, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine[rank], expected[rank], rtol=1e-6, atol=1e-6)
        assert torch.equal(mine[rank], mine[0])
        assert found[rank][0].world == world
    # The whole vector within the machine, and one part of it between machines.
    share = SIZE // (world // len(machines))
    for _, traffic in found:
        assert traffic["merge"].num_bytes + traffic["buffers"].num_bytes == 4 * (SIZE + share)


def test_machines_of_different_sizes_are_refused_for_two_levels():
    with pytest.raises(ValueError, match=r"machines have \[2, 1\]; leave it out"):
        two_levels(join_request(0, ("a", "a", "b")), None)
