"""A run that goes on from a commit ends with the bits of one that never stopped; another workflow does not go on."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from conftest import CATEGORIES, make_workflow
from support.data.row_files import flip
from support.depth import some
from support.faults.killed_after_commit import changed, kill_after
from support.runs.harness import THREE_TIERS, make_driver, printed, run

from pipeline.data.agenda import Position
from pipeline.data.source import Source
from pipeline.driver.finished import finished
from pipeline.driver.resume import check_same_run, description
from pipeline.driver.session import plan_session
from pipeline.models import DeepFM
from pipeline.settings.optimizer import Plateau
from pipeline.storage.files import Damaged
from pipeline.worker.stage_runner import StageRunner
from pipeline.workflow import Commit, Metrics


@pytest.fixture(scope="module")
def workflow(data_root):
    return make_workflow(data_root).model_copy(update={"commit": Commit(every_blocks=3)})


@pytest.fixture(scope="module")
def whole(workflow):
    return run(workflow, **THREE_TIERS)


@pytest.mark.parametrize("commits", some([1, 2, 5, 6], 2, 6))
def test_a_killed_run_resumes_to_the_same_result(workflow, whole, tmp_path, monkeypatch, commits):
    kill_after(commits, workflow, tmp_path, monkeypatch)
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    for name in ("fingerprint", "epochs", "examples", "rows", "auc", "split"):
        assert result[name] == whole[name]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1]) == whole["epochs"][-1]


CHANGE_NO_BIT = [
    {"schedule__block_batches": 5, "metrics": Metrics(group="user", progressive=True)},
    {"schedule__block_batches": 1, "schedule__look_ahead": 4, "name": "other", "storage__log_multiple": 4.0,
     "storage__log_growth": 0.2, "commit": Commit(keep=1)},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGE_NO_BIT, ids=["larger blocks, metrics", "smaller blocks, storage"])
def test_harmless_changes_are_accepted_and_change_no_bit(workflow, whole, tmp_path, monkeypatch, changes):
    kill_after(4, workflow, tmp_path, monkeypatch)
    sizes = {"device_rows": 300, "host_rows": 0, "chunk_rows": 4}
    driver = make_driver(changed(workflow, **changes), tmp_path, **sizes)
    assert driver.warnings == []
    result = driver.run()
    assert result["fingerprint"] == whole["fingerprint"]
    evaluated = [entry for entry in result["epochs"] if entry["split"] != "train"]
    assert [{k: v for k, v in e.items() if not k.startswith("gauc")} for e in evaluated] == whole["epochs"]


def test_a_change_of_the_executor_changes_no_bit(workflow, whole, client, tmp_path, monkeypatch):
    kill_after(3, workflow, tmp_path, monkeypatch)
    kill_after(3, workflow, tmp_path, monkeypatch, client)
    result = make_driver(workflow, tmp_path, client, **THREE_TIERS).run()
    assert result["fingerprint"] == whole["fingerprint"]
    assert make_driver(workflow, tmp_path, **THREE_TIERS).run() == result


@pytest.mark.parametrize("kill", [None, 3])
def test_epochs_added_later_end_like_epochs_requested_at_once(workflow, whole, tmp_path, monkeypatch, kill):
    fewer = changed(workflow, schedule__epochs=1)
    if kill:
        kill_after(kill, fewer, tmp_path, monkeypatch)
    else:
        make_driver(fewer, tmp_path, **THREE_TIERS).run()
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    assert result["fingerprint"] == whole["fingerprint"]
    assert [e for e in result["epochs"] if e["split"] == "validation"] == whole["epochs"][:2]
    assert result["epochs"][-1] == whole["epochs"][-1]


def test_fewer_epochs_than_were_begun_are_refused(workflow, tmp_path, monkeypatch):
    """Within the second epoch, one epoch is too few: it cannot be untrained."""
    kill_after(5, workflow, tmp_path, monkeypatch)
    state = json.loads((sorted((tmp_path / "commits").glob("*.json"))[-1]).read_text())["commit"]["state"]
    assert (state["position"]["epoch"], state["position"]["batch"] > 0) == (1, True)
    with pytest.raises(ValueError, match=r"schedule\.epochs: was 2, is 1, and"):
        make_driver(changed(workflow, schedule__epochs=1), tmp_path, **THREE_TIERS)


def test_a_difference_that_changes_bits_is_refused_and_named(workflow, tmp_path, monkeypatch):
    kill_after(1, workflow, tmp_path, monkeypatch)
    other = changed(
        workflow, seed=8, schedule__batch_size=7, model__embedding_dim=4, data__shuffle_window=99,
        storage__chunk_rows=2048, schedule__look_ahead=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="holds a commit of another workflow") as caught:
        make_driver(other, tmp_path, **THREE_TIERS)
    said = str(caught.value)
    for line in (
        "seed: was 7, is 8", "schedule.batch_size: was 6, is 7", "model.embedding_dim: was 3, is 4",
        "data.shuffle_window: was 16, is 99", "storage.chunk_rows: was 1024, is 2048",
    ):  # fmt: skip
        assert f"\n       {line}\n" in said
    assert "look_ahead" not in said
    assert "--fresh" in said
    assert "--out" in said


def test_a_difference_of_long_lists_is_described_by_names(workflow, described):
    others = tuple(c.model_copy(update={"name": f"another_{c.name}"}) for c in CATEGORIES[:2])
    other = changed(workflow, data__categories=(*others, *CATEGORIES[2:]), seed=8)
    with pytest.raises(ValueError, match="another workflow") as caught:
        check_same_run(described(), described(other), Position(0, "train", 3))
    assert (
        "\n       data.categories: was a list of 5, is one of 5: without history, item; with another_history, "
        "another_item\n"
    ) in str(caught.value)
    assert "another name=" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_changes_that_alter_later_bits_get_a_warning(workflow, tmp_path, monkeypatch):
    kill_after(2, workflow, tmp_path, monkeypatch)
    slower = workflow.optimizer.model_copy(update={"dense": workflow.optimizer.dense.model_copy(update={"lr": 0.5})})
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.driver.resume.version", lambda name: "0.0")
        driver = make_driver(changed(workflow, optimizer=slower, schedule__threads=2), tmp_path, **THREE_TIERS)
    driver.run()
    lines = [line for line in printed(driver).splitlines() if "the result will not be bit-identical" in line]
    for part in ("optimizer.dense.lr: was 0.01, is 0.5", "schedule.threads: was 1, is 2", "torch: was "):
        assert [line for line in lines if part in line], part
    assert len(lines) == 5


def test_an_interrupted_evaluation_is_counted_once_and_in_full(workflow, whole, tmp_path, monkeypatch):
    """A pause after the first of its blocks; the run that goes on evaluates all of the split."""
    one = changed(workflow, schedule__block_batches=1, commit=Commit())
    plan, seen = StageRunner._plan, []

    def pausing(self, i):
        block = self._blocks[i]
        seen.append(block)
        if block.split == "validation" and block.first_batch == 1 and block.epoch == 0:
            self.pause = "asked to"
        return plan(self, i)

    with monkeypatch.context() as patched:
        patched.setattr(StageRunner, "_plan", pausing)
        kill_after(1, one, tmp_path, monkeypatch, device_rows=4096)
    assert seen[-1].split == "validation"
    driver = make_driver(one, tmp_path, **THREE_TIERS)
    assert driver.committer.position == Position(0, "validation", 0)
    result = driver.run()
    assert (result["fingerprint"], result["epochs"]) == (whole["fingerprint"], whole["epochs"])
    assert result["examples"] == whole["examples"]


def test_a_finished_run_keeps_its_result_without_training_again(workflow, tmp_path):
    first = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and "commits" in str(p)}
    assert make_driver(workflow, tmp_path, **THREE_TIERS).run() == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and "commits" in str(p)} == before
    (tmp_path / "result.json").unlink()
    again = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    for name in ("fingerprint", "epochs", "examples", "rows"):
        assert again[name] == first[name]


def test_the_commit_of_the_best_epoch_is_kept(workflow, tmp_path):
    longer = changed(workflow, schedule__epochs=4, commit=Commit(every_blocks=3, keep=1))
    result = make_driver(longer, tmp_path, **THREE_TIERS).run()
    aucs = [e["auc"] for e in result["epochs"] if e["split"] == "validation"]
    manifests = [json.loads(p.read_text())["commit"] for p in sorted((tmp_path / "commits").glob("*.json"))]
    best = [m for m in manifests if m["name"] == "best"]
    assert len(best) == 1
    assert len([e for e in best[0]["state"]["epochs"] if e["split"] == "validation"]) == 1 + aucs.index(max(aucs))
    assert len(manifests) <= 2


@pytest.fixture(scope="module")
def described(workflow):
    identity = Source(workflow.data, 0).identity
    return lambda workflow=workflow, **named: description(workflow, identity, **named)


class Twice(DeepFM):
    """Has an argument with a default."""

    def __init__(self, hidden=(5,), times=2, **named):
        super().__init__(hidden=hidden, **named)


SAME = {
    "a table named as it is by default": {
        "data__categories": tuple(c.model_copy(update={"table": c.table_name}) for c in CATEGORIES)
    },
    "pooling of a column of single values": {
        "data__categories": tuple(
            c if c.name in ("history", "tags") else c.model_copy(update={"pooling": "mean"}) for c in CATEGORIES
        )
    },
    "an argument that is its default": {"model__args": {"hidden": [5], "times": 2}},
    "no validation data": {"data__validation": ()},
}


@pytest.mark.parametrize("what", SAME)
def test_what_means_the_same_goes_on_without_a_warning(workflow, described, what):
    own = changed(workflow, model__kind=Twice)
    before, now = described(own), described(changed(own, **SAME[what]))
    assert check_same_run(before, now, Position(0, "train", 3), Twice) == []
    assert check_same_run(now, before, Position(0, "train", 3), Twice) == []


DIFFERENT = [
    {"data__categories": tuple(c.model_copy(update={"pooling": "sum"}) for c in CATEGORIES)},
    {"data__categories": tuple(c.model_copy(update={"table": "one"}) for c in CATEGORIES)},
    {"model__args": {"times": 3}}, {"model__args": {"hidden": [6]}},
]  # fmt: skip


@pytest.mark.parametrize("changes", DIFFERENT, ids=["pooling of lists", "table", "own argument", "argument"])
def test_what_means_something_else_is_refused(workflow, described, changes):
    own = changed(workflow, model__kind=Twice)
    with pytest.raises(ValueError, match="another workflow"):
        check_same_run(described(own), described(changed(own, **changes)), Position(0, "train", 3), Twice)


def test_other_processor_instructions_are_warned_about(workflow, described, monkeypatch):
    before = described()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    said = check_same_run(before, described(), Position(0, "train", 3))
    assert [line.split("bit-identical: ")[1] for line in said] == [
        'ATEN_CPU_CAPABILITY: was null, is "default"', 'MKL_CBWR: was null, is "COMPATIBLE"',
    ]  # fmt: skip


def test_every_commit_follows_at_least_one_block(workflow, whole, client, tmp_path):
    """However short the time between two: each comes after a block at least; without them there are three."""
    impatient = changed(workflow, commit=Commit(every_minutes=1e-9))
    driver = make_driver(impatient, tmp_path, client, **THREE_TIERS)
    result = driver.run()
    blocks = len(list(driver.agenda.blocks(workflow.schedule.block_batches)))
    assert result["fingerprint"] == whole["fingerprint"]
    assert 3 < result["disk"]["commits"] <= blocks + 1


def test_older_commits_stay_until_the_newest_has_been_read(workflow, tmp_path, monkeypatch):
    kill_after(4, workflow, tmp_path, monkeypatch)
    *older, newest = sorted((tmp_path / "commits").glob("*.safetensors"))
    flip(newest, -1)
    before = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(Damaged, match=f"{newest.name}: its checksum"):
        make_driver(changed(workflow, commit=Commit(keep=1, keep_best=False)), tmp_path, **THREE_TIERS)
    assert older
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == before


def test_fields_newer_than_a_commit_have_their_defaults_in_it(workflow, described):
    before = json.loads(json.dumps(described()))
    del before["workflow"]["metrics"], before["workflow"]["model"]["precision"]
    assert check_same_run(before, described(), Position(0, "train", 3)) == []


def test_another_device_is_warned_about(workflow, described):
    on_cpu, on_gpu = (described(device=device) for device in ("cpu", "Some GPU"))
    said = check_same_run(on_cpu, on_gpu, Position(0, "train", 3))
    assert said == [
        'changed since the run began, so the result will not be bit-identical: device: was "cpu", is "Some GPU"'
    ]
    assert check_same_run(on_cpu, described(changed(workflow, device="auto")), Position(0, "train", 3)) == []


def test_steps_that_would_be_counted_twice_are_refused(described):
    """Where a last batch is joined for so many workers, and was not for as many as there were."""
    before, now = (described(world=n, steps_of_epoch=steps) for n, steps in ((1, 15), (4, 14)))
    with pytest.raises(ValueError, match="steps of an epoch: were 15, are 14"):
        check_same_run(before, now, Position(1, "train", 0))


def test_an_edited_model_goes_on_with_a_warning(workflow, described):
    before = described() | {"code": "file 3.11 0123456789abcdef"}
    now = described() | {"code": "file 3.11 fedcba9876543210"}
    (said,) = check_same_run(before, now, Position(0, "train", 3))
    assert said.endswith(
        "the file of model.kind pipeline.models.deepfm.DeepFM, or one that it imports, was edited since the run was "
        "trained with it"
    )
    for unknown in ("", "3.11 0123456789abcdef", "file 2.7 0123456789abcdef"):
        assert check_same_run(before | {"code": unknown}, now, Position(0, "train", 3)) == []


@pytest.mark.parametrize("plateau", [None, Plateau(metric="logloss", stop_after=1)], ids=["the last", "the best"])
def test_a_test_split_that_is_added_later_is_tested_as_at_once(workflow, tmp_path, plateau):
    workflow = workflow.with_settings({"schedule.plateau": plateau, "schedule.epochs": 3})
    run_dir, whole = tmp_path / "run", run(workflow, **THREE_TIERS)
    without = make_driver(workflow.with_settings({"data.test": ()}), run_dir, **THREE_TIERS).run()
    assert without["epochs"] == whole["epochs"][:-1]

    def say_finished():
        return finished(plan_session(workflow, run_dir, True, None, None, print))

    assert not say_finished()
    driver = make_driver(workflow, run_dir, **THREE_TIERS)
    assert driver.warnings == []
    found = driver.run()
    assert (found["epochs"], found["fingerprint"]) == (whole["epochs"], whole["fingerprint"])
    assert say_finished()
    assert make_driver(workflow, run_dir, **THREE_TIERS).run() == found
    other = changed(workflow, **rewritten_test(workflow, tmp_path))
    again = make_driver(other, run_dir, **THREE_TIERS).run()
    assert again["epochs"][:-1] == found["epochs"][:-1]
    assert again["epochs"][-1]["examples"] == found["epochs"][-1]["examples"] - 2


def rewritten_test(workflow, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(workflow.data.root, root)
    pq.write_table(pq.read_table(root / "test.parquet").slice(2), root / "test.parquet")
    return {"data__root": root}


@pytest.fixture(scope="module")
def ended(workflow, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("ended")
    make_driver(workflow, run_dir, **THREE_TIERS).run()
    return run_dir


def test_a_finished_run_reserves_no_disk_until_it_goes_on(workflow, ended, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(ended, run_dir)
    assert not (run_dir / "reserve").exists()
    driver = make_driver(changed(workflow, schedule__epochs=workflow.schedule.epochs + 1), run_dir, **THREE_TIERS)
    assert (run_dir / "reserve").stat().st_size > 0
    driver.run()
    assert not (run_dir / "reserve").exists()


OTHER_QUESTIONS = {
    "optimizer": (lambda w, _: {"optimizer__max_grad_norm": 1.0}, "max_grad_norm: was null"),
    "metrics": (lambda w, _: {"metrics__progressive": True}, "metrics.progressive: was"),
    "test files": (rewritten_test, "data.test: test.parquet: row.*`pipeline score` scores other files"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER_QUESTIONS)
@pytest.mark.parametrize("whole", [True, False], ids=["all files", "without its result"])
def test_old_results_answer_no_other_question(workflow, ended, tmp_path, what, whole):
    change, said = OTHER_QUESTIONS[what]
    other = changed(workflow, **change(workflow, tmp_path))
    run_dir = tmp_path / "run"
    shutil.copytree(ended, run_dir)
    if not whole:
        (run_dir / "result.json").unlink()
    with pytest.raises(ValueError, match=f"(?s)has ended, and its results are not those of this workflow.*{said}"):
        make_driver(other, run_dir, **THREE_TIERS)
    session = plan_session(other, run_dir, True, None, None, print)
    with pytest.raises(ValueError, match=f"(?s)has ended, and its results are not.*{said}"):
        finished(session)
    assert finished(plan_session(changed(workflow, schedule__threads=2), run_dir, True, None, None, print)) or not whole
