"""Every row optimizer in both semantics through the whole pipeline: the bits are those of a plain loop in memory."""

import json
import weakref

import numpy as np
import pytest
from conftest import make_workflow, write_data
from sklearn.metrics import roc_auc_score
from support.depth import some
from support.faults.killed_after_commit import kill_after
from support.oracle.optimizers import DENSE, EXACT, POWERS
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, make_driver, printed, run

from pipeline.commits.manifest import Commits
from pipeline.errors import PipelineError
from pipeline.models import LR
from pipeline.optim.rates import RUNS
from pipeline.settings.optimizer import Adam, Ftrl, Optimizer, Plateau
from pipeline.storage.files import Files
from pipeline.verify import verify
from pipeline.workflow import Commit


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("dense"), num_train=200, num_keys=60)


LAZY_BETAS = ((0.0, 0.999), (0.5, 0.25), (0.9, 0.0))


def workflow_of(root, optimizer, **changes):
    return make_workflow(root, **changes).model_copy(update={"optimizer": optimizer})


@pytest.mark.parametrize("name", some(EXACT, "lazy adam", "dense, clipped norm", "CowClip"))
def test_three_tiers_train_the_same_bits_as_the_plain_loop(root, name):
    workflow = workflow_of(root, EXACT[name])
    plain = Reference(workflow).train()
    result = run(workflow, **THREE_TIERS)
    assert result["fingerprint"] == plain.fingerprint()
    assert result["tiers"]["disk"]["rows_in"] > 100, "nothing came from the disk"
    aucs = [entry["auc"] for entry in result["epochs"] if entry["split"] != "train"]
    assert aucs == pytest.approx([roc_auc_score(labels, scores) for _, scores, labels in plain.scores], abs=1e-12)


@pytest.mark.parametrize("name", some(["CowClip", "lazy CowClip"], "CowClip"))
def test_the_share_of_clipped_rows_is_that_of_the_plain_loop(root, name):
    """Fields share a table and lists hold keys twice, so a key's count is not that of its occurrences."""
    workflow = workflow_of(root, EXACT[name], epochs=1)
    clipped = Reference(workflow).train().clipped
    assert 0 < sum(clipped) < len(clipped)
    shares = [entry["clipped"] for entry in run(workflow, **THREE_TIERS)["epochs"] if entry["split"] == "train"]
    assert shares == [pytest.approx(sum(clipped) / len(clipped), abs=1e-12)]


@pytest.mark.parametrize("name", some(EXACT | POWERS, "dense adam with L2"))
def test_tiers_blocks_commits_and_kills_never_change_a_result(root, name, tmp_path, monkeypatch):
    workflow = workflow_of(root, (EXACT | POWERS)[name], block_batches=2)
    whole = run(workflow)
    assert run(workflow_of(root, (EXACT | POWERS)[name], block_batches=5), **THREE_TIERS)["epochs"] == whole["epochs"]
    often = workflow.model_copy(update={"commit": Commit(every_blocks=2)})
    kill_after(4, often, tmp_path, monkeypatch, **THREE_TIERS)
    result = make_driver(often, tmp_path, **THREE_TIERS).run()
    assert result["fingerprint"] == whole["fingerprint"]
    # Of the training split there is what the session saw.
    assert [e for e in result["epochs"] if e["split"] != "train"] == [
        e for e in whole["epochs"] if e["split"] != "train"
    ]


@pytest.mark.parametrize(
    "name", some(["dense adam with L2", "dense, clipped norm", "dense sgd with L2"], "dense adam with L2")
)
@pytest.mark.prove
def test_evaluation_stores_no_row_that_it_caught_up(root, name):
    workflow = workflow_of(root, (EXACT | POWERS)[name])
    without = workflow.with_settings({"data.validation": (), "data.test": ()})
    assert run(workflow, **THREE_TIERS)["fingerprint"] == run(without, **THREE_TIERS)["fingerprint"]


@pytest.mark.parametrize(
    ("semantics", "betas"),
    some(
        [*(("lazy", betas) for betas in LAZY_BETAS), ("dense", (0.5, 0.9)), ("dense", (0.9, 0.9))],
        ("dense", (0.5, 0.9)),
        several=True,
    ),
)
def test_other_betas_train_the_same_bits_as_the_plain_loop(root, betas, semantics):
    rows = Adam(lr=0.05, semantics=semantics, beta1=betas[0], beta2=betas[1])
    workflow = workflow_of(root, Optimizer(rows=rows, dense=DENSE), epochs=1)
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("stored", ["float32", {"state": "bfloat16"}], ids=["float32", "narrow state"])
@pytest.mark.parametrize("kind", some([Ftrl, Adam], Ftrl))
def test_rows_without_an_embedding_equal_the_plain_loop(root, kind, stored):
    optimizer = Optimizer(rows=kind(lr=0.1, semantics="dense", storage=stored), dense=DENSE)
    workflow = workflow_of(root, optimizer, kind=LR, embedding_dim=0, args={})
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.prove
def test_a_row_past_its_lifespan_is_read_as_zero(root):
    """A workflow whose test split has its own keys: past their lifespan they are zero without a loop."""
    rows = Adam(lr=0.01, l2=0.1, semantics="dense")
    workflow = workflow_of(root, Optimizer(rows=rows, dense=DENSE), batch_size=1, epochs=8)
    driver = make_driver(workflow, root.parent / "lifespan")
    driver.run()
    optimizer = driver.crew.worker.tiers.learner.rows
    assert optimizer._life_of_first_rows(1 << 30) == 1 << 10
    row = np.zeros((3, driver.crew.worker.tiers.row.num_words), np.uint32)
    weights = row.view(np.float32)[:, 2:6]
    weights[:] = 0.01
    # Seen last at no step, at one long ago, and just now.
    row[:, driver.crew.worker.tiers.row.last_step_at] = 0, 1, optimizer.rates.num_steps
    optimizer.catch_up_copy(row, optimizer.rates.num_steps)
    assert not weights[:2].any()
    assert (weights[2] == np.float32(0.01)).all()


def plateau_workflow(root, **changes):
    plateau = Plateau(lr_factor=0.1, stop_after=2, **changes)
    workflow = workflow_of(root, EXACT["dense, clipped norm"], epochs=12, plateau=plateau)
    return workflow.model_copy(update={"commit": Commit(every_blocks=3)})


@pytest.mark.prove
def test_training_stops_on_a_plateau_and_tests_the_best_epoch(root, tmp_path):
    workflow = plateau_workflow(root)
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    validated = [e["auc"] for e in result["epochs"] if e["split"] == "validation"]
    best = int(np.argmax(validated))
    assert (best, len(validated)) == (0, 3), "the data is to overfit at once"
    assert result["epochs"][-1]["split"] == "test"
    assert result["epochs"][-1]["epoch"] == best + 1
    # Without a reduction before the best epoch, the run up to there is one of a constant learning rate.
    shorter = run(workflow.with_settings({"schedule.plateau": None, "schedule.epochs": best + 1}), **THREE_TIERS)
    assert shorter["fingerprint"] == result["fingerprint"]
    assert shorter["epochs"][-1] == result["epochs"][-1]
    again = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    assert again == json.loads((tmp_path / "result.json").read_text()) == result


@pytest.mark.prove
@pytest.mark.parametrize("commits", [2, 6, 9])
def test_a_kill_never_changes_a_run_with_plateaus(root, tmp_path, monkeypatch, commits):
    workflow = plateau_workflow(root)
    whole = run(workflow, **THREE_TIERS)
    kill_after(commits, workflow, tmp_path, monkeypatch, **THREE_TIERS)
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    assert (result["fingerprint"], result["epochs"]) == (whole["fingerprint"], whole["epochs"])


def in_the_test(driver, act):
    """Runs, and acts once while the test is scored."""
    watch, acted = driver.runner.watch, []

    def watched(done):
        watch(done)
        if done.trained and done.trained.block.split == "test" and not acted:
            acted.append(act(driver))

    driver.runner.watch = watched
    return driver.run()


@pytest.mark.prove
def test_a_signal_during_the_test_never_changes_the_result(root, tmp_path):
    workflow = plateau_workflow(root).with_settings({"schedule.block_batches": 1})
    sizes = THREE_TIERS | {"ring_rows": 300}
    assert in_the_test(make_driver(workflow, tmp_path, **sizes), lambda driver: driver.pauses.stop("SIGINT")) is None
    driver = make_driver(workflow, tmp_path, **sizes)
    assert "tests the best epoch" in driver.what_is_kept()
    result = driver.run()
    whole = run(workflow, **sizes)
    assert (result["fingerprint"], result["epochs"]) == (whole["fingerprint"], whole["epochs"])


@pytest.mark.prove
def test_a_commit_comes_due_only_in_training(root, tmp_path):
    often = plateau_workflow(root).with_settings({"schedule.block_batches": 1, "commit": Commit(every_minutes=1e-9)})
    driver, asked = make_driver(often, tmp_path, **THREE_TIERS, ring_rows=300), []
    result = in_the_test(driver, lambda driver: asked.append(driver.pauses._sent))
    assert asked == [None]
    whole = run(often.model_copy(update={"commit": Commit()}), **THREE_TIERS, ring_rows=300)
    assert result["disk"]["commits"] > whole["disk"]["commits"]
    assert result["fingerprint"] == whole["fingerprint"]


@pytest.mark.prove
def test_a_best_epoch_that_cannot_be_opened_ends_the_run(root, tmp_path):
    driver = make_driver(plateau_workflow(root), tmp_path, **THREE_TIERS)

    def other_data(_):
        raise ValueError("worker 0 reads other data")

    driver.crew.open = other_data
    with pytest.raises(PipelineError, match=r"worker 0 reads other data\ncommit .* holds all of the training"):
        driver.run()


@pytest.mark.prove
def test_slabs_of_the_last_epoch_are_freed_for_the_best(root, tmp_path):
    driver = make_driver(plateau_workflow(root), tmp_path, **THREE_TIERS)
    tiers = driver.crew.worker.tiers
    before = [weakref.ref(array.base) for array in (tiers.slab.words_SW, tiers.host.words_SW)]
    first = weakref.ref(tiers)
    del tiers
    alive = []
    in_the_test(driver, lambda _: alive.extend(array() is not None for array in before))
    assert driver.crew.worker.tiers is not first(), "the last epoch was the best"
    assert alive == [False, False]


@pytest.mark.prove
def test_the_last_epoch_is_tested_if_the_best_commit_is_lost(root, tmp_path):
    """Its commit is damaged, and given up."""
    workflow = plateau_workflow(root)
    make_driver(workflow, tmp_path, **THREE_TIERS).run()
    (tmp_path / "result.json").unlink()
    best = next(manifest for manifest in Commits(tmp_path, Files(), keep=9).kept() if manifest.name == "best")
    dense = tmp_path / "commits" / f"{best.number:06}.safetensors"
    content = dense.read_bytes()
    dense.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert verify(tmp_path, repair=True) == 0
    driver = make_driver(workflow, tmp_path, **THREE_TIERS)
    last = len([e for e in driver.history.epochs if e["split"] == "validation"])
    assert driver.run()["epochs"][-1]["epoch"] == last
    assert f"epoch {last} is tested instead" in printed(driver)


@pytest.mark.prove
def test_every_reduced_learning_rate_is_kept_in_the_history(root, tmp_path):
    driver = make_driver(plateau_workflow(root, metric="logloss"), tmp_path, **THREE_TIERS)
    learner, close = driver.crew.worker.tiers.learner, driver.crew.worker.tiers.close
    lived = []
    driver.crew.worker.tiers.close = lambda: (lived.extend(learner.rows.rates.save()[RUNS][:, 0].tolist()), close())
    driver.run()
    verdict = driver.best.verdict(driver.history)
    assert verdict.worse >= 2
    # The last epoch was the last that was worse.
    assert learner.rows.lr == pytest.approx(0.05 * 0.1 ** (verdict.worse - 1))
    assert learner.dense.lr == pytest.approx(0.01 * 0.1 ** (verdict.worse - 1))
    assert sorted(set(lived), reverse=True) == pytest.approx([0.05 * 0.1**n for n in range(verdict.worse)])
