"""Several workers train what one worker trains, each step to rounding."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import CATEGORIES, NARROW, write_data
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.data.histories import workflow_with_histories, write_histories
from support.depth import some
from support.oracle.worker_cases import DENSE, RULES, Squared, workflow_of
from support.runs.crew_threads import ONE, crew_driver, rows_of, train, workers_of

from pipeline.driver.loop import DueCommit
from pipeline.models import MMoE
from pipeline.workflow import Commit, Task


def flushed(driver):
    """Rows and the dense part, which must be the same on all workers."""
    for worker in workers_of(driver):
        worker.flush(99)
    first, *others = (worker.dense() for worker in workers_of(driver))
    assert all(np.array_equal(first[name], other[name]) for other in others for name in first)
    return rows_of(driver), {name: value.copy() for name, value in first.items()}


def one_step_after(workflow, root, world, step):
    """Rows, dense part and loss of one worker and of several, after the same step from the same commit."""
    found, losses = [], []
    with crew_driver(workflow, root / "one", ONE) as driver:
        blocks = list(driver.agenda.blocks(1))
        assert driver.crew.run(blocks[:step], 2, driver.history.add) is None
        driver.commit(DueCommit(blocks[step]))
        shutil.copytree(root / "one", root / "many")
        driver.crew.run([blocks[step]], 2, lambda done: losses.append(done.trained))
        found.append(flushed(driver))
    with crew_driver(workflow, root / "many", world) as driver:
        driver.crew.run([blocks[step]], 2, lambda done: losses.append(done.trained))
        found.append(flushed(driver))
    loss, loss_of_many = (trained.loss for trained in losses if trained)
    # With labels that not every example has, each worker reports the mean over its own.
    assert workflow.data.tasks or loss_of_many == pytest.approx(loss, rel=1e-5)
    return found[0], found[1]


def compare(one, many, width, lr, dense_lr):
    """Weights to |w| / 100,000 and a hundredth of a step; the last step and the count of each row exactly."""
    rows, rows_of_many = one[0], many[0]
    assert rows.keys() == rows_of_many.keys()
    keys = sorted(rows)
    words, words_of_many = (np.array([of[key] for key in keys]) for of in (rows, rows_of_many))
    np.testing.assert_array_equal(words[:, -2:], words_of_many[:, -2:], "last step or count")
    weights, weights_of_many = (of[:, :width].copy().view(np.float32) for of in (words, words_of_many))
    np.testing.assert_allclose(weights_of_many, weights, rtol=1e-5, atol=1e-2 * lr)
    compare_dense(one[1], many[1], dense_lr)


def compare_dense(one, many, lr):
    for name, value in one.items():
        if name.startswith("model/"):
            np.testing.assert_allclose(many[name], value, rtol=1e-5, atol=1e-2 * lr, err_msg=name)


@pytest.fixture(scope="module")
def few_keys(tmp_path_factory):
    """Every worker needs most keys, and many examples hold one twice."""
    return write_data(tmp_path_factory.mktemp("few"), num_train=90, num_keys=9)


def check_step(root, name, world, step, **changes):
    optimizer = RULES[name]
    workflow = workflow_of(root, optimizer, **changes)
    with tempfile.TemporaryDirectory() as folder:
        one, many = one_step_after(workflow, Path(folder), world, step)
    width = workflow.model.embedding_dim + getattr(workflow.model.kind, "first_order", False)
    compare(one, many, width, optimizer.rows.lr, DENSE.lr)


@pytest.mark.parametrize("name", some(RULES, "dense CowClip", "clipped norm"))
def test_each_row_optimizer_takes_the_same_step_with_workers(few_keys, name):
    check_step(few_keys, name, 3, 6, batch_size=11, weight="importance")


@pytest.mark.parametrize("name", some(RULES, "dense CowClip"))
def test_narrow_fields_take_the_same_step_with_workers(data_root, name):
    """Many rows are new: only the worker that sends a row's gradient knows how many weights its field uses."""
    if RULES[name].rows.kind != "ftrl":
        check_step(data_root, name, 3, 1, batch_size=11, categories=NARROW)


@pytest.mark.parametrize("name", some([name for name in RULES if name != "ftrl"], "clipped norm", "dense CowClip"))
def test_sequences_take_the_same_step_with_workers(tmp_path, name):
    """A worker's part of a batch may have no value of a sequence."""
    workflow = workflow_with_histories(write_histories(tmp_path / "data", num_train=90, num_keys=9), batch_size=5)
    one, many = one_step_after(workflow.model_copy(update={"optimizer": RULES[name]}), tmp_path, 3, 6)
    compare(one, many, workflow.model.embedding_dim + 1, RULES[name].rows.lr, DENSE.lr)


@pytest.mark.parametrize(
    "task",
    [Task(label="bought", where="click", weight=0.4), Task(label="x4", loss="huber", delta=0.5, where="click")],
    ids=["binary", "number"],
)
def test_masked_labels_weigh_alike_on_any_worker(few_keys, task):
    """A batch has few clicks, and a worker's part of it often none."""
    labels = {"labels": ("click", "bought"), "kind": MMoE, "args": {"hidden": (5,), "tower": (3,)}}
    workflow = workflow_of(few_keys, RULES["clipped norm"], batch_size=7, weight="importance", **labels)
    numbers = tuple(number for number in workflow.data.numbers if number.name != task.label)
    changed = {"data.numbers": numbers, "data.labels": ("click", task.label), "data.tasks": (task,)}
    workflow = workflow.with_settings(changed)
    for step in (1, 6):
        with tempfile.TemporaryDirectory() as folder:
            one, many = one_step_after(workflow, Path(folder), 3, step)
        compare(one, many, workflow.model.embedding_dim, RULES["clipped norm"].rows.lr, DENSE.lr)


FIELDS = st.lists(st.sampled_from(CATEGORIES), min_size=1, max_size=5, unique_by=lambda category: category.name)


# Each case takes a second: to shrink one that fails would take minutes.
@settings(deadline=None, max_examples=4, phases=[Phase.generate])
@given(
    st.sampled_from([*RULES]), FIELDS, st.integers(2, 4), st.integers(1, 14), st.integers(1, 9), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_a_step_of_several_workers_is_that_of_one(few_keys, name, fields, world, step, batch_size, weighted, own_loss):
    changes = {"kind": Squared, "args": {}} if own_loss else {}
    changes |= {"weight": "importance" if weighted else None, "categories": tuple(fields), "batch_size": batch_size}
    check_step(few_keys, name, world, min(step, 90 // batch_size - 1), **changes)


def noted(run, refusals, *args):
    """Call `run`, and append its result."""
    refusals.append(run(*args))
    return refusals[-1]


@pytest.mark.parametrize("known_examples", some([30, 0, 1 << 20]))
def test_policies_do_not_change_the_rows_of_several_workers(tmp_path, monkeypatch, known_examples):
    """Each worker knows the keys of its own shards in the blocks to come. Commits come before the log has grown too
    much: where one worker refuses a block, how many blocks the others plan in vain, which counts, depends on time."""
    root = write_data(tmp_path / "data", num_train=120, num_keys=400)
    clock = workflow_of(root, RULES["clipped norm"], batch_size=6, block_batches=1, epochs=1)
    clock = clock.model_copy(update={"commit": Commit(every_blocks=5)})
    policies = {"device_policy": "foresight", "host_policy": "foresight", "known_examples": known_examples}
    foresight = clock.model_copy(update={"storage": clock.storage.model_copy(update=policies)})
    rows, moves = [], []
    refusals = []
    for name, workflow in (("clock", clock), ("foresight", foresight), ("again", foresight)):
        with crew_driver(workflow, tmp_path / name, 3, device_rows=60, host_rows=3) as driver:
            monkeypatch.setattr(driver.crew, "run", partial(noted, driver.crew.run, refusals))
            train(driver)
            rows.append(rows_of(driver))
            moves.append(driver.history.tiers.counts())
    assert {*refusals} == {None}, "a block was refused, so the counts may differ"
    for other in rows[1:]:
        assert other.keys() == rows[0].keys()
        assert all(np.array_equal(other[key], words) for key, words in rows[0].items())
    assert moves[0]["trained"]["disk_hits"] > 30
    assert moves[1] == moves[2], "what is known depends on the order of tasks"
