"""As many workers always come to the same bits, and the dense parts of all of them too."""

import numpy as np
import pytest
from conftest import write_data
from support.depth import some
from support.oracle.worker_cases import RULES, Normed, ignore, workflow_of
from support.runs.crew_threads import ONE, crew_driver, make_crew_driver, train, workers_of

from pipeline.data.buffer import ReadBuffer
from pipeline.driver.loop import DueCommit
from pipeline.preflight.check_model import check_model
from pipeline.records import Rank
from pipeline.settings.optimizer import Adam, DenseAdam, KStep, Optimizer
from pipeline.training.build import row_layout
from pipeline.training.dense_state import MODEL


def fingerprint(workflow, run_dir, world, **sizes):
    result = make_crew_driver(workflow, run_dir, world, **sizes).run()
    assert result
    return str(result["fingerprint"])


SCHEDULES = {
    "again": ({}, {}),
    "three tiers": ({}, {"device_rows": 40, "host_rows": 5, "chunk_rows": 2}),
    "no host": ({"block_batches": 1}, {"device_rows": 40, "host_rows": 0, "chunk_rows": 2}),
    "small blocks": ({"block_batches": 1, "look_ahead": 1}, {}),
    "large blocks": ({"block_batches": 16, "look_ahead": 4}, {"device_rows": 50, "host_rows": 5, "chunk_rows": 2}),
}


@pytest.fixture(scope="module")
def expected(data_root, tmp_path_factory):
    return fingerprint(tiered(data_root), tmp_path_factory.mktemp("expected"), 3)


def tiered(root, **changes):
    return workflow_of(root, RULES["dense CowClip"], weight="importance", **changes)


@pytest.mark.parametrize("name", some(SCHEDULES, "large blocks"))
def test_three_workers_give_the_same_bits_with_any_tiers(data_root, expected, tmp_path, name):
    changes, sizes = SCHEDULES[name]
    assert fingerprint(tiered(data_root, **changes), tmp_path, 3, **sizes) == expected


def test_an_ended_run_of_three_workers_resumes_to_the_same_bits(data_root, expected, tmp_path):
    with crew_driver(tiered(data_root), tmp_path, 3) as driver:
        blocks = list(driver.agenda.blocks(2))
        driver.crew.run(blocks[:4], 2, driver.history.add)
        driver.commit(DueCommit(blocks[4]))
    assert fingerprint(tiered(data_root), tmp_path, 3) == expected


def replicas_after_each_block(driver, part=""):
    """Parameters, buffers and optimizer state of each worker's dense part, or one of these parts; its own thread looks
    at them."""
    crew = driver.crew
    found = {}

    def after(rank, done):
        if done.stage == "train" and done.call:
            saved = crew.workers[rank].dense()
            found.setdefault(done.number, []).append(
                b"".join(saved[name].tobytes() for name in sorted(saved) if name.startswith(part))
            )

    crew.after = after
    train(driver)
    return found


def test_replicas_with_batch_norm_agree(tmp_path):
    """13 examples of two batches, the last of which would have one."""
    root = write_data(tmp_path / "data", num_train=13)
    workflow = workflow_of(root, RULES["adam"], kind=Normed, args={}, block_batches=1, epochs=2)
    with crew_driver(workflow, tmp_path, 3) as driver:
        train = [b for b in driver.agenda.blocks(1) if b.trains]
        assert [b.num_examples for b in train] == [6, 7] * 2
        found = replicas_after_each_block(driver)
        norm = workers_of(driver)[0].model()
    assert all(len(replicas) == 3 and len(set(replicas)) == 1 for replicas in found.values())
    assert len({replicas[0] for replicas in found.values()}) == 4, "an evaluation changed something, or no step did"
    assert norm["norm.num_batches_tracked"] == 4
    assert not np.array_equal(norm["norm.running_mean"], np.zeros(7))


def test_buffers_are_the_mean_of_what_all_workers_saw(data_root, tmp_path):
    workflow = workflow_of(data_root, RULES["adam"], kind=Normed, args={}, batch_size=8)
    with crew_driver(workflow, tmp_path, 3) as driver:
        block = next(driver.agenda.blocks(1))
        driver.crew.run([block], 1, ignore)
        found = [worker.model()["norm.running_mean"] for worker in workers_of(driver)]
        parts = [
            workers_of(driver)[0].stages.source.read(block, ReadBuffer(1 << 20), Rank(rank, 3)) for rank in range(3)
        ]
        means = [part.numbers_NX.mean(axis=0) for part in parts]
    for one in found:
        np.testing.assert_allclose(one, 0.1 * np.mean(means, axis=0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", some(["adam", "clipped norm"], "clipped norm"))
def test_replicas_agree_where_workers_have_no_examples(data_root, tmp_path, name):
    """Batches of two examples, four workers; blocks of evaluation too."""
    workflow = workflow_of(data_root, RULES[name], batch_size=2, block_batches=9)
    with crew_driver(workflow, tmp_path, 4) as driver:
        found = replicas_after_each_block(driver)
    assert all(len(replicas) == 4 and len(set(replicas)) == 1 for replicas in found.values())


def test_replicas_agree_after_merges_and_differ_between(data_root, tmp_path):
    optimizer = Optimizer(rows=Adam(lr=0.05), dense=DenseAdam(lr=0.01, eps=1e-4), merge=KStep(k=4, start=1))
    with crew_driver(workflow_of(data_root, optimizer, block_batches=1), tmp_path, 2) as driver:
        found = replicas_after_each_block(driver, MODEL)
        closing = next(b.number for b in driver.agenda.blocks(1) if b.trains and b.closes_split)
    same = {number + 1 for number, replicas in found.items() if len(set(replicas)) == 1 and number <= closing}
    assert closing + 1 == 15
    assert same == {1, 4, 8, 12, 15}


def test_batch_norm_needs_two_examples_of_each_worker(data_root):
    workflow = workflow_of(data_root, RULES["adam"], kind=Normed, args={}, batch_size=7)
    dense = check_model(workflow, row_layout(workflow))
    assert [dense.min_last_batch(7, world) for world in (1, 2, 3)] == [2, 4, 6]
    with pytest.raises(ValueError, match="batch_size is 7, and batch norm needs two examples of each of 4 workers"):
        dense.min_last_batch(7, 4)


@pytest.mark.parametrize("world", some([2, 4], 4))
def test_evaluation_finds_the_same_metrics_with_more_workers(data_root, tmp_path, world):
    """Of the same commit: the first validation, of 13 examples."""
    workflow = workflow_of(data_root, RULES["sgd"], weight="importance", block_batches=1)
    workflow = workflow.with_settings({"metrics.group": "user", "data.categories": workflow.data.categories[:4]})
    found = []
    for of_world in (ONE, world):
        with crew_driver(workflow, tmp_path, of_world) as driver:
            blocks = list(driver.agenda.blocks(1))
            validation = [b for b in blocks if b.split == "validation"]
            if of_world == ONE:
                driver.crew.run([b for b in blocks if b.trains], 2, driver.history.add)
                driver.commit(DueCommit(validation[0]))
            driver.crew.run(validation, 2, lambda done: found.append(done.trained.metrics) if done.trained else None)
    one, many = (metrics for metrics in found if metrics)
    assert list(one) == list(many)
    assert many == pytest.approx(one, rel=1e-5, nan_ok=True)
