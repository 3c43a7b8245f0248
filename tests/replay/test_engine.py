"""A simulated run has the hits and moves of the real one, tier by tier and worker by worker."""

import tempfile
from pathlib import Path

import pytest
from conftest import make_workflow
from hypothesis import example, given
from hypothesis import strategies as st
from support.depth import examples, some
from support.runs.crew_threads import make_crew_driver, train
from support.runs.replayed_runs import counts_of_commits, simulated, trained, with_settings

from pipeline.metrics.totals import TierTotals
from pipeline.storage.policies import POLICIES

CHAIN = ("lru", "lfu")


def check_equal(workflow, **sizes):
    """Train, simulate, compare; returns the driver."""
    with tempfile.TemporaryDirectory() as run_dir:
        driver, refusal = trained(workflow, Path(run_dir), **sizes)
    totals = simulated(workflow, **sizes)
    assert totals.counts() == driver.history.tiers.counts()
    assert counts_of_commits(totals.disk) == counts_of_commits(driver.history.disk)
    assert totals.stopped == refusal
    return driver


SMALL = {"device_rows": 120, "host_rows": 24, "ring_rows": 2048}


@pytest.mark.parametrize("policies", [("clock", "clock"), CHAIN, ("lfu_aged", "foresight")])
def test_a_simulated_run_has_the_moves_of_the_run(small_workflow, policies):
    driver = check_equal(with_settings(small_workflow(), policies, every_blocks=3), **SMALL)
    trained = driver.history.tiers.counts()["trained"]
    assert min(trained["host_hits"], trained["disk_hits"], trained["unchanged"], trained["host_to_disk"]) > 0
    assert driver.history.disk.rows_merged > 0


@examples(4, 120)
@given(
    st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(POLICIES)), st.integers(60, 200), st.integers(0, 60),
    st.integers(150, 400), st.sampled_from([3, 16]), st.sampled_from([24, 30, 60, 1 << 20]),
    st.sampled_from([None, 1, 4]), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3),
)  # fmt: skip
# A window is refused, and then planned with a smaller look-ahead.
@example("clock", "clock", 87, 0, 174, 3, 1 << 20, None, 1, 3, 1)
def test_sizes_policies_and_refusals_do_not_matter(
    data_root, device, host, device_rows, host_rows, ring_rows, chunk_rows, spare, every_blocks, look_ahead,
    block_batches, keep,
):  # fmt: skip
    workflow = make_workflow(data_root, look_ahead=look_ahead, block_batches=block_batches)
    workflow = with_settings(workflow, (device, host), every_blocks=every_blocks, keep=keep, keep_best=False)
    check_equal(
        workflow, device_rows=device_rows, host_rows=host_rows, ring_rows=ring_rows, chunk_rows=chunk_rows,
        disk_chunks=-(-(device_rows + host_rows) // chunk_rows) + spare,
    )  # fmt: skip


@pytest.mark.parametrize("world", some([1, 2, 3], 2))
def test_each_worker_has_the_moves_of_its_twin(data_root, tmp_path, world):
    workflow = with_settings(make_workflow(data_root), CHAIN, every_blocks=3)
    sizes = {"device_rows": 150 // world, "host_rows": 24 // world, "ring_rows": 2048}
    driver = make_crew_driver(workflow, tmp_path, world, **sizes)
    of_each = [TierTotals() for _ in range(world)]
    driver.crew.after = lambda rank, done: of_each[rank].add(done.moves) if done.moves else None
    train(driver)
    driver.crew.close()
    totals = simulated(workflow, world, **sizes)
    assert [totals.tiers(rank).counts() for rank in range(world)] == [worker.counts() for worker in of_each]
    assert totals.counts() == driver.history.tiers.counts()
    assert counts_of_commits(totals.disk) == counts_of_commits(driver.history.disk)
    assert totals.counts()["trained"]["disk_hits"] > 0


def test_a_map_that_is_full_ends_the_simulated_run_too(data_root):
    workflow = with_settings(make_workflow(data_root))
    driver = check_equal(workflow, **SMALL, map_bytes=1 << 15)
    assert driver.history.tiers.counts()["trained"]["keys"] == 0


def test_foresight_knows_as_much_in_a_simulation_as_in_a_run(data_root):
    workflow = with_settings(make_workflow(data_root, look_ahead=1, block_batches=2))
    foresight = with_settings(workflow.with_settings({"storage.known_examples": 30}), ("foresight", "foresight"))
    counts = [check_equal(one, **SMALL).history.tiers.counts()["trained"] for one in (workflow, foresight)]
    assert counts[1]["disk_hits"] < counts[0]["disk_hits"]
