"""The replay of a run by its record has its moves exactly, whatever happened to the run."""

import math
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import make_workflow
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples, some
from support.runs.crew_threads import ONE
from support.runs.replayed_runs import Killed, Stop, counts_of_commits, opened, replayed, to_the_end, with_settings

from pipeline.driver.stretches import STRETCHES, read_events
from pipeline.metrics.totals import TierTotals
from pipeline.settings.optimizer import Plateau
from pipeline.storage.policies import POLICIES

SESSIONS = st.lists(
    st.tuples(
        st.sampled_from([ONE, ONE, 1, 2, 3]), st.integers(1, 9), st.booleans(), st.sampled_from(sorted(POLICIES)),
        st.sampled_from(sorted(POLICIES)), st.integers(1, 4), st.integers(1, 3),
    ),
    max_size=3,
)  # fmt: skip
"""Of each session before the last: workers, trained blocks until it stops, whether it is killed, policies, L, k."""

POLICIES = [("clock", "clock"), ("foresight", "foresight")]
SMALL = {"device_rows": 120, "host_rows": 24}
TORN = b'{"event":"open","comm' + bytes(9) + b'}\n{"event":"kept","kept":[77]}\n{"event":"stretch","spl'
"""What a power failure may leave of lines that were not durable."""


def check_replayed(workflow, run_dir, driver):
    totals = replayed(workflow, run_dir)
    assert totals.counts() == driver.history.tiers.counts()
    assert counts_of_commits(totals.disk) == counts_of_commits(driver.history.disk)
    return totals


@examples(4, 48)
@given(
    SESSIONS, st.sampled_from([ONE, 1, 2, 3]), st.integers(60, 160), st.integers(0, 60), st.integers(150, 400),
    st.sampled_from([0, 2, 1 << 20]), st.sampled_from([None, 1e-6]), st.sampled_from([None, 2]), st.integers(1, 3),
)  # fmt: skip
def test_signals_kills_refusals_and_workers_do_not_matter(
    data_root, sessions, world, device_rows, host_rows, ring_rows, spare, every_minutes, every_blocks, keep
):
    workflow = make_workflow(data_root)
    sizes = {"device_rows": device_rows, "host_rows": host_rows, "ring_rows": ring_rows, "chunk_rows": 4}
    # Each of up to six shards may begin a chunk, and eight per shard may always be added.
    sizes["disk_chunks"] = (device_rows + host_rows) // 4 + 60 + spare
    commit = {"every_minutes": every_minutes, "every_blocks": every_blocks, "keep": keep}
    with tempfile.TemporaryDirectory() as path:
        run_dir = Path(path)
        for workers, blocks, kills, device, host, look_ahead, block_batches in sessions:
            pace = {"look_ahead": look_ahead, "block_batches": block_batches}
            changed = workflow.with_settings({f"schedule.{name}": value for name, value in pace.items()})
            driver = opened(with_settings(changed, (device, host), **commit), run_dir, workers, **sizes)
            driver.runner.observers.append(Stop(driver, blocks, kills))
            with suppress(Killed):
                to_the_end(driver)
            if kills:
                with (run_dir / STRETCHES).open("ab") as record:
                    record.write(TORN)
        driver = opened(with_settings(workflow, **commit), run_dir, world, **sizes)
        to_the_end(driver)
        check_replayed(workflow, run_dir, driver)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.prove)])
def test_each_worker_is_replayed(data_root, tmp_path, world):
    workflow = with_settings(make_workflow(data_root), ("lru", "lfu"), every_blocks=2)
    driver = opened(workflow, tmp_path, world, device_rows=150 // world, host_rows=24 // world, ring_rows=90)
    of_each = [TierTotals() for _ in range(world)]
    driver.crew.after = lambda rank, done: of_each[rank].add(done.moves) if done.moves else None
    to_the_end(driver)
    totals = check_replayed(workflow, tmp_path, driver)
    assert [totals.tiers(rank).counts() for rank in range(world)] == [worker.counts() for worker in of_each]


@pytest.mark.parametrize("published", [False, True])
def test_a_kill_within_a_commit_leaves_no_doubt(data_root, tmp_path, monkeypatch, published):
    workflow = with_settings(make_workflow(data_root), every_blocks=2)
    driver = opened(workflow, tmp_path, **SMALL)
    publish = driver.commits.publish

    def killed(manifest):
        if manifest.number < 3:
            return publish(manifest)
        if published:
            publish(manifest)
        raise Killed

    monkeypatch.setattr(driver.commits, "publish", killed)
    with pytest.raises(Killed):
        to_the_end(driver)
    driver = opened(workflow, tmp_path, **SMALL)
    assert driver.committer.newest.number == 2 + published
    to_the_end(driver)
    check_replayed(workflow, tmp_path, driver)


def test_a_record_that_ends_within_a_line_is_told(tmp_path):
    record = tmp_path / STRETCHES
    record.write_bytes(b'{"event":"kept","kept":[1]}\n' + TORN)
    events = read_events(record)
    assert next(events).kept == (1,)
    with pytest.raises(ValueError, match=f"{STRETCHES}, line 2: it is not an event of a run"):
        next(events)


@pytest.mark.parametrize("policies", some(POLICIES, ("foresight", "foresight")))
def test_a_run_that_went_on_for_more_epochs_is_replayed(data_root, tmp_path, policies):
    for epochs in (1, 2):
        workflow = with_settings(make_workflow(data_root, epochs=epochs), policies)
        driver = opened(workflow, tmp_path, **SMALL)
        to_the_end(driver)
    check_replayed(workflow, tmp_path, driver)


@pytest.mark.parametrize("policies", some(POLICIES, ("foresight", "foresight")))
def test_a_run_that_stopped_early_is_replayed_with_its_test(data_root, tmp_path, policies):
    workflow = with_settings(make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1)), policies)
    driver = opened(workflow, tmp_path, **SMALL)
    driver.run()
    assert driver.history.epochs[-1]["split"] == "test"
    check_replayed(workflow, tmp_path, driver)


@pytest.mark.parametrize("policies", some(POLICIES, ("foresight", "foresight")))
def test_a_run_killed_in_its_best_epochs_test_is_replayed(data_root, tmp_path, policies):
    workflow = with_settings(make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1)), policies)
    driver = opened(workflow, tmp_path, **SMALL)

    def killed(epoch):
        raise Killed

    driver.test_best = killed
    with pytest.raises(Killed):
        driver.run()
    driver = opened(workflow, tmp_path, **SMALL)
    driver.run()
    assert driver.history.epochs[-1]["split"] == "test"
    check_replayed(workflow, tmp_path, driver)


def test_a_test_without_a_best_epoch_forgets_coming_keys(data_root, tmp_path, monkeypatch):
    workflow = make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1))
    driver = opened(with_settings(workflow, ("foresight", "foresight")), tmp_path, **SMALL)

    def not_a_number(metric):
        return [math.nan] * sum(epoch["split"] == "validation" for epoch in driver.history.epochs)

    monkeypatch.setattr(driver.history, "validated", not_a_number)
    driver.run()
    assert driver.history.epochs[-1]["split"] == "test"
