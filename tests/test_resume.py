"""A run that goes on from a commit ends with the bits of one that never stopped; another workflow does not go on."""

import json
import os
import shutil
import sys
from io import StringIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import CATEGORIES, make_workflow, write_data
from harness import make_driver, run

from pipeline.agenda import Position
from pipeline.cluster.local import local_client
from pipeline.committer import Committer
from pipeline.data.source import Source
from pipeline.failures import PipelineError
from pipeline.models import DeepFM
from pipeline.monitor.progress import Progress
from pipeline.resources import Resources
from pipeline.resume import check, description
from pipeline.storage.files import Damaged, checksum
from pipeline.verify import verify
from pipeline.workflow import Commit, Metrics

SIZES = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}


class Killed(BaseException):
    """Ends a run between two instructions, as far as its files can tell."""


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    root = write_data(tmp_path_factory.mktemp("resume"), num_train=90, num_keys=60)
    return make_workflow(root).model_copy(update={"commit": Commit(every_blocks=3)})


@pytest.fixture(scope="module")
def whole(workflow):
    return run(workflow, **SIZES)


def changed(workflow, **changes):
    """A copy with other fields, given as section__field=value."""
    for path, value in changes.items():
        section, _, field = path.partition("__")
        inner = getattr(workflow, section).model_copy(update={field: value}) if field else value
        workflow = workflow.model_copy(update={section: inner})
    return workflow


def kill_after(commits, workflow, run_dir, monkeypatch, client=None, **sizes):
    """Run until so many commits are published."""
    run_dir.mkdir(exist_ok=True)
    commit, num = Committer.commit, iter(range(1, 1000))

    def counted(self, *args, **named):
        commit(self, *args, **named)
        if next(num) == commits:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "commit", counted)
        driver = make_driver(workflow, run_dir, client, **(SIZES | sizes))
        with pytest.raises(Killed):
            driver.run()


@pytest.mark.parametrize("commits", [1, 2, 5, 6])
def test_a_run_that_was_killed_ends_otherwise_than_one_that_was_not(workflow, whole, tmp_path, monkeypatch, commits):
    kill_after(commits, workflow, tmp_path, monkeypatch)
    result = make_driver(workflow, tmp_path, **SIZES).run()
    for name in ("fingerprint", "epochs", "examples", "rows", "auc", "split"):
        assert result[name] == whole[name]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1]) == whole["epochs"][-1]


HARMLESS = [
    {"schedule__block_batches": 5},
    {"schedule__block_batches": 1, "schedule__look_ahead": 4},
    {"name": "other", "storage__log_multiple": 4.0, "storage__log_growth": 0.2, "commit": Commit(keep=1)},
]


@pytest.mark.parametrize("changes", HARMLESS, ids=["larger blocks", "smaller blocks", "storage"])
def test_what_changes_no_bit_is_refused_or_shows(workflow, whole, tmp_path, monkeypatch, changes):
    kill_after(4, workflow, tmp_path, monkeypatch)
    sizes = {"device_rows": 300, "host_rows": 0, "chunk_rows": 4}
    driver = make_driver(changed(workflow, **changes), tmp_path, **sizes)
    assert driver._warnings == []
    result = driver.run()
    assert (result["fingerprint"], result["epochs"]) == (whole["fingerprint"], whole["epochs"])


def test_other_metrics_are_refused_or_change_a_bit(workflow, whole, tmp_path, monkeypatch):
    kill_after(4, workflow, tmp_path, monkeypatch)
    driver = make_driver(changed(workflow, metrics=Metrics(group="user", progressive=True)), tmp_path, **SIZES)
    assert driver._warnings == []
    result = driver.run()
    assert result["fingerprint"] == whole["fingerprint"]
    evaluated = [entry for entry in result["epochs"] if entry["split"] != "train"]
    assert [{k: v for k, v in e.items() if not k.startswith("gauc")} for e in evaluated] == whole["epochs"]


def test_a_change_of_the_executor_shows(workflow, whole, tmp_path, monkeypatch):
    with local_client() as client:
        kill_after(3, workflow, tmp_path, monkeypatch)
        kill_after(3, workflow, tmp_path, monkeypatch, client)
        result = make_driver(workflow, tmp_path, client, **SIZES).run()
        assert result["fingerprint"] == whole["fingerprint"]
        assert make_driver(workflow, tmp_path, **SIZES).run() == result


@pytest.mark.parametrize("kill", [None, 3])
def test_more_epochs_end_otherwise_than_if_they_had_been_asked_for_at_once(
    workflow, whole, tmp_path, monkeypatch, kill
):
    fewer = changed(workflow, schedule__epochs=1)
    if kill:
        kill_after(kill, fewer, tmp_path, monkeypatch)
    else:
        make_driver(fewer, tmp_path, **SIZES).run()
    result = make_driver(workflow, tmp_path, **SIZES).run()
    assert result["fingerprint"] == whole["fingerprint"]
    assert [e for e in result["epochs"] if e["split"] == "validation"] == whole["epochs"][:2]
    assert result["epochs"][-1] == whole["epochs"][-1]


@pytest.mark.parametrize("commits", [4, 5])
def test_epochs_that_were_begun_are_taken_back(workflow, tmp_path, monkeypatch, commits):
    """Within the second epoch, one epoch is too few: it cannot be untrained."""
    kill_after(commits, workflow, tmp_path, monkeypatch)
    state = json.loads((sorted((tmp_path / "commits").glob("*.json"))[-1]).read_text())["commit"]["state"]
    assert (state["position"]["epoch"], state["position"]["batch"] > 0) == (1, True)
    with pytest.raises(ValueError, match=r"schedule\.epochs: was 2, is 1, and"):
        make_driver(changed(workflow, schedule__epochs=1), tmp_path, **SIZES)


def test_a_difference_that_changes_bits_is_taken_or_not_named(workflow, tmp_path, monkeypatch):
    kill_after(1, workflow, tmp_path, monkeypatch)
    other = changed(
        workflow, seed=8, schedule__batch_size=7, model__embedding_dim=4, data__shuffle_window=99,
        storage__chunk_rows=2048, schedule__look_ahead=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="holds a commit of another workflow") as caught:
        make_driver(other, tmp_path, **SIZES)
    said = str(caught.value)
    for line in (
        "seed: was 7, is 8", "schedule.batch_size: was 6, is 7", "model.embedding_dim: was 3, is 4",
        "data.shuffle_window: was 16, is 99", "storage.chunk_rows: was 1024, is 2048",
    ):  # fmt: skip
        assert f"\n       {line}\n" in said
    assert "look_ahead" not in said
    assert "--fresh" in said
    assert "--run-dir" in said


def rewrite(change, name="train-0.parquet", row_group_size=8):
    """Write a file of the data anew, with a change of its table."""

    def apply(root):
        table = pq.read_table(root / name)
        pq.write_table(change(table), root / name, row_group_size=row_group_size)

    return apply


def column(name, change):
    return lambda table: table.set_column(table.column_names.index(name), name, change(table[name]))


def swapped(root):
    """Two training files of as many rows change their names."""
    os.rename(root / "train-0.parquet", root / "x")
    os.rename(root / "train-1.parquet", root / "train-0.parquet")
    os.rename(root / "x", root / "train-1.parquet")


OTHER_DATA = {
    "seed": (lambda root: write_data(root, seed=1, num_train=90, num_keys=60), r"train-0\.parquet: "),
    "keys": (rewrite(column("item", lambda c: pc.add(c, 1_000_000))), r"train-0\.parquet: "),
    "labels": (
        rewrite(column("click", lambda c: pc.subtract(pa.scalar(1, pa.int8()), c))),
        r"train-0\.parquet: ",
    ),
    "type": (
        lambda root: [
            rewrite(column("item", lambda c: c.cast(pa.string())), file.name)(root) for file in root.glob("*.parquet")
        ],
        r"train-0\.parquet: type of column 'item' was int64, is string",
    ),
    "row groups": (
        rewrite(lambda table: table, row_group_size=5),
        r"row groups were 5 of 8 rows, 1 of 5 rows, are 9 of 5 rows",
    ),
    "order": (swapped, r"train-0\.parquet: other content|train-0\.parquet: size was"),
    "name": (
        lambda root: os.rename(root / "train-0.parquet", root / "train-2.parquet"),
        r"file 1 was train-0\.parquet, is train-1\.parquet",
    ),
    "fewer": (lambda root: (root / "train-1.parquet").unlink(), r"file 2 was train-1\.parquet, is none"),
    "rows": (lambda root: write_data(root, num_train=91, num_keys=60), "row groups were"),
}


@pytest.mark.parametrize("other", OTHER_DATA)
def test_other_training_data_is_refused_with_the_first_difference(
    workflow, tmp_path, tmp_path_factory, monkeypatch, other
):
    change, said = OTHER_DATA[other]
    root, run_dir = copy_of(workflow, tmp_path_factory), tmp_path / "run"
    elsewhere = changed(workflow, data__root=root, data__train=("train*.parquet",))
    if other == "order":
        # As many rows each, so that nothing but their order is another one.
        shutil.copy(root / "train-0.parquet", root / "train-1.parquet")
        rewrite(column("item", lambda c: pc.add(c, 1)), "train-1.parquet")(root)
    kill_after(1, elsewhere, run_dir, monkeypatch)
    change(root)
    with pytest.raises(ValueError, match=r"another workflow:\n +data\.train: .*" + said) as caught:
        make_driver(elsewhere, run_dir, **SIZES)
    assert "batch norm" not in str(caught.value)


def copy_of(workflow, tmp_path_factory):
    root = tmp_path_factory.mktemp("copy") / "data"
    shutil.copytree(workflow.data.root, root)
    return root


def test_the_same_data_elsewhere_by_other_patterns_goes_on_without_a_word(
    workflow, whole, tmp_path, tmp_path_factory, monkeypatch
):
    kill_after(1, workflow, tmp_path / "run", monkeypatch)
    root = copy_of(workflow, tmp_path_factory)
    moved = changed(workflow, data__root=root, data__train=("train-0.parquet", "*-1.parquet"))
    driver = make_driver(moved, tmp_path / "run", **SIZES)
    assert driver._warnings == []
    assert driver.run()["fingerprint"] == whole["fingerprint"]


def test_other_test_data_is_taken_with_a_word_and_metrics_say_which(
    workflow, whole, tmp_path, tmp_path_factory, monkeypatch
):
    kill_after(1, workflow, tmp_path / "run", monkeypatch)
    root = copy_of(workflow, tmp_path_factory)
    rewrite(lambda table: table.slice(2), "test.parquet")(root)
    driver = make_driver(changed(workflow, data__root=root), tmp_path / "run", **SIZES)
    said = "metrics of test are from here on of other data, and not to be compared with those before: test.parquet: row"
    assert [warning[: len(said)] for warning in driver._warnings] == [said]
    result = driver.run()
    assert result["fingerprint"] == whole["fingerprint"]
    digests = [{e["split"]: e["data"] for e in r["epochs"]} for r in (whole, result)]
    assert digests[0]["validation"] == digests[1]["validation"]
    assert digests[0]["test"] != digests[1]["test"]
    assert [result["data"][split]["digest"] for split in ("validation", "test")] == list(digests[1].values())


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "in place"])
def test_a_file_that_changes_during_a_run_ends_it_and_the_old_one_goes_on(
    workflow, whole, tmp_path, tmp_path_factory, replaced
):
    root = copy_of(workflow, tmp_path_factory)
    driver = make_driver(changed(workflow, data__root=root), tmp_path / "run", **SIZES)
    watch, file, before = driver._watch, root / "train-1.parquet", (root / "train-1.parquet").read_bytes()

    def overwrite(done):
        watch(done)
        if done.trained and done.trained.block.epoch == 0 and not done.trained.block.trains:
            invert = column("click", lambda c: pc.subtract(pa.scalar(1, pa.int8()), c))
            pq.write_table(invert(pq.read_table(file)), root / "x", row_group_size=8)
            assert len((root / "x").read_bytes()) == len(before), "sizes alone would tell"
            os.rename(root / "x", file) if replaced else file.write_bytes((root / "x").read_bytes())

    driver._watch = overwrite
    with pytest.raises(
        PipelineError, match=r"train-1\.parquet was changed during the run: train-1\.parquet: other con"
    ):
        driver.run()
    file.write_bytes(before)
    assert make_driver(driver.workflow, tmp_path / "run", **SIZES).run()["fingerprint"] == whole["fingerprint"]


def test_a_file_that_is_written_anew_as_it_was_changes_nothing(workflow, whole, tmp_path, tmp_path_factory):
    root = copy_of(workflow, tmp_path_factory)
    driver = make_driver(changed(workflow, data__root=root), tmp_path / "run", **SIZES)
    watch = driver._watch

    def rewrite_all(done):
        watch(done)
        for file in root.glob("*.parquet"):
            file.write_bytes(file.read_bytes())

    driver._watch = rewrite_all
    assert driver.run()["fingerprint"] == whole["fingerprint"]


def test_what_changes_bits_later_on_is_not_said(workflow, tmp_path, monkeypatch):
    kill_after(2, workflow, tmp_path, monkeypatch)
    slower = workflow.optimizer.model_copy(update={"dense": workflow.optimizer.dense.model_copy(update={"lr": 0.5})})
    stream = StringIO()
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.resume.version", lambda name: "0.0")
        driver = make_driver(changed(workflow, optimizer=slower, schedule__threads=2), tmp_path, **SIZES)
    driver._progress = Progress(driver.agenda.total_examples, stream=stream)
    driver.run()
    lines = [line for line in stream.getvalue().splitlines() if "other bits will come of it" in line]
    for part in ("optimizer.dense.lr: was 0.01, is 0.5", "schedule.threads: was 1, is 2", "torch: was "):
        assert [line for line in lines if part in line], part
    assert len(lines) == 5


def test_an_evaluation_that_was_interrupted_is_counted_twice_or_in_part(workflow, whole, tmp_path, monkeypatch):
    """A pause after the first of its blocks; the run that goes on evaluates all of the split."""
    one = changed(workflow, schedule__block_batches=1, commit=Commit())
    plan, seen = Resources._plan, []

    def pausing(self, i):
        block = self._blocks[i]
        seen.append(block)
        if block.split == "validation" and block.first_batch == 1 and block.epoch == 0:
            self.pause = "asked to"
        return plan(self, i)

    with monkeypatch.context() as patched:
        patched.setattr(Resources, "_plan", pausing)
        kill_after(1, one, tmp_path, monkeypatch, device_rows=4096)
    assert seen[-1].split == "validation"
    driver = make_driver(one, tmp_path, **SIZES)
    assert driver._position == Position(0, "validation", 0)
    result = driver.run()
    assert (result["fingerprint"], result["epochs"]) == (whole["fingerprint"], whole["epochs"])
    assert result["examples"] == whole["examples"]


def test_a_finished_run_trains_again_or_forgets_its_result(workflow, tmp_path):
    first = make_driver(workflow, tmp_path, **SIZES).run()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and "commits" in str(p)}
    assert make_driver(workflow, tmp_path, **SIZES).run() == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and "commits" in str(p)} == before
    (tmp_path / "result.json").unlink()
    again = make_driver(workflow, tmp_path, **SIZES).run()
    for name in ("fingerprint", "epochs", "examples", "rows"):
        assert again[name] == first[name]


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "workflow.json", "result.json"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_what_a_finished_run_left_is_written_anew_where_it_is_wrong(workflow, tmp_path, capsys, name, how):
    first = make_driver(workflow, tmp_path, **SIZES).run()
    file = tmp_path / name
    content = file.read_bytes()
    assert verify(tmp_path) == 0
    file.write_bytes(content.replace(b"0.", b"1.") if name != "model.safetensors" else content[:-1] + b"\0")
    if how == "missing":
        file.unlink()
    wrong = name in ("model.safetensors", "metrics.jsonl") or (name == "result.json" and how == "changed")
    assert verify(tmp_path) == verify(tmp_path, repair=True) == wrong
    assert (f"{file}: " in capsys.readouterr().out) == wrong
    again = make_driver(workflow, tmp_path, **SIZES).run()
    assert all(again[key] == first[key] for key in ("fingerprint", "auc", "epochs", "files"))
    assert name == "result.json" or file.read_bytes() == content
    assert json.loads((tmp_path / "result.json").read_text()) == again
    assert verify(tmp_path) == 0


def test_the_commit_of_the_best_epoch_is_not_kept(workflow, tmp_path):
    longer = changed(workflow, schedule__epochs=4, commit=Commit(every_blocks=3, keep=1))
    result = make_driver(longer, tmp_path, **SIZES).run()
    aucs = [e["auc"] for e in result["epochs"] if e["split"] == "validation"]
    manifests = [json.loads(p.read_text())["commit"] for p in sorted((tmp_path / "commits").glob("*.json"))]
    best = [m for m in manifests if m["name"] == "best"]
    assert len(best) == 1
    assert len([e for e in best[0]["state"]["epochs"] if e["split"] == "validation"]) == 1 + aucs.index(max(aucs))
    assert len(manifests) <= 2


def test_a_description_is_the_same_after_json(workflow, described):
    now = described()
    assert json.loads(json.dumps(now)) == now
    assert check(json.loads(json.dumps(now)), now, Position(2, "train", 0)) == []


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
def test_what_means_the_same_goes_on_without_a_word(workflow, described, what):
    own = changed(workflow, model__kind=Twice)
    before, now = described(own), described(changed(own, **SAME[what]))
    assert check(before, now, Position(0, "train", 3), Twice) == []
    assert check(now, before, Position(0, "train", 3), Twice) == []


DIFFERENT = [
    {"data__categories": tuple(c.model_copy(update={"pooling": "sum"}) for c in CATEGORIES)},
    {"data__categories": tuple(c.model_copy(update={"table": "one"}) for c in CATEGORIES)},
    {"model__args": {"times": 3}}, {"model__args": {"hidden": [6]}},
]  # fmt: skip


@pytest.mark.parametrize("changes", DIFFERENT, ids=["pooling of lists", "table", "own argument", "argument"])
def test_what_means_something_else_is_refused(workflow, described, changes):
    own = changed(workflow, model__kind=Twice)
    with pytest.raises(ValueError, match="another workflow"):
        check(described(own), described(changed(own, **changes)), Position(0, "train", 3), Twice)


def test_other_instructions_of_the_processor_are_told(workflow, described, monkeypatch):
    before = described()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    said = check(before, described(), Position(0, "train", 3))
    assert [line.split("of it: ")[1] for line in said] == [
        'ATEN_CPU_CAPABILITY: was null, is "default"', 'MKL_CBWR: was null, is "COMPATIBLE"',
    ]  # fmt: skip


def test_commits_follow_each_other_and_nothing_is_trained(workflow, whole, tmp_path):
    """However short the time between two: each comes after a block at least."""
    impatient = changed(workflow, commit=Commit(every_minutes=1e-9))
    with local_client() as client:
        driver = make_driver(impatient, tmp_path, client, **SIZES)
        result = driver.run()
    blocks = len(list(driver.agenda.blocks(workflow.schedule.block_batches)))
    assert result["fingerprint"] == whole["fingerprint"]
    assert result["disk"]["commits"] <= blocks + 1


def test_older_commits_go_before_the_newest_is_known_to_be_whole(workflow, tmp_path, monkeypatch):
    kill_after(4, workflow, tmp_path, monkeypatch)
    *older, newest = sorted((tmp_path / "commits").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    before = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(Damaged, match=f"{newest.name}: its checksum"):
        make_driver(changed(workflow, commit=Commit(keep=1, keep_best=False)), tmp_path, **SIZES)
    assert older
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == before


def test_fields_that_came_after_a_commit_have_their_defaults_in_it(workflow, described):
    before = json.loads(json.dumps(described()))
    del before["workflow"]["metrics"], before["workflow"]["model"]["precision"]
    assert check(before, described(), Position(0, "train", 3)) == []


def test_another_device_is_told(workflow, described):
    on_cpu, on_gpu = (described(device=device) for device in ("cpu", "Some GPU"))
    told = check(on_cpu, on_gpu, Position(0, "train", 3))
    assert told == ['other than when it began, so that other bits will come of it: device: was "cpu", is "Some GPU"']
    assert check(on_cpu, described(changed(workflow, device="auto")), Position(0, "train", 3)) == []


def test_steps_that_would_be_counted_twice_are_refused(described):
    """Where a last batch is joined for so many workers, and was not for as many as there were."""
    before, now = (described(world=n, steps_of_epoch=steps) for n, steps in ((1, 15), (4, 14)))
    with pytest.raises(ValueError, match="steps of an epoch: were 15, are 14"):
        check(before, now, Position(1, "train", 0))


@pytest.mark.parametrize("kind", ["runs_evil.payload.X", "os.system", "runs_evil.payload:X", ""])
def test_a_class_that_only_the_run_directory_names_is_not_imported(workflow, tmp_path, monkeypatch, kind):
    kill_after(1, workflow, tmp_path / "run", monkeypatch)
    (tmp_path / "runs_evil").mkdir()
    (tmp_path / "runs_evil" / "payload.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    forge(tmp_path / "run", lambda commit: commit["state"]["workflow"]["model"].update(kind=kind))
    before = set(sys.modules)
    with pytest.raises(ValueError, match=r'model\.kind: was "' + kind):
        make_driver(workflow, tmp_path / "run", **SIZES)
    assert not (tmp_path / "ran").exists()
    assert set(sys.modules) == before


def forge(run_dir, change):
    """Change values of the newest manifest, and make its checksum right."""
    file = max((run_dir / "commits").glob("*.json"))
    commit = json.loads(file.read_bytes())["commit"]
    change(commit)
    text = json.dumps(commit)
    file.write_bytes(f'{{"checksum": "{checksum(text.encode())}", "commit": {text}}}\n'.encode())


FORGED = {
    "empty": lambda s: s.clear(),
    "without data": lambda s: s.pop("data"),
    "no position": lambda s: s.pop("position"),
    "batch -1": lambda s: s["position"].update(batch=-1),
    "batch 1,000,000": lambda s: s["position"].update(batch=1_000_000),
    "another batch": lambda s: s["position"].update(batch=s["position"]["batch"] + 1),
    "epoch 7": lambda s: s["position"].update(epoch=7),
    "split": lambda s: s["position"].update(split="../x"),
    "speed": lambda s: s["speed"].update(seconds_per_read=0),
    "tiers": lambda s: s["tiers"]["trained"].pop("keys"),
    "epochs": lambda s: s["epochs"].append({"epoch": 1, "split": "validation"}),
    "disk": lambda s: s["disk"].update(commits="many"),
    "trained": lambda s: s.update(trained=1e300),
    "workflow": lambda s: s.update(workflow={"model": {"kind": "a.b"}}),
    "model": lambda s: s["workflow"].update(model=[]),
    "deep": lambda s: s.update(seconds=[[[[[[]]]]]]),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_state_that_no_run_can_have_written_is_refused(workflow, tmp_path, monkeypatch, what):
    kill_after(1, workflow, tmp_path, monkeypatch)
    forge(tmp_path, lambda commit: FORGED[what](commit["state"]))
    with pytest.raises((Damaged, ValueError), match=r"state\.|cannot be read|model\.kind"):
        make_driver(workflow, tmp_path, **SIZES)
    # What depends on workflow and data is for the run to say.
    assert verify(tmp_path) == (what not in ("batch 1,000,000", "another batch", "epoch 7", "workflow", "model"))


LINKED = ["commits", "table.zarr", "table.zarr/rows", "table.zarr/keys"]


@pytest.mark.parametrize("folder", LINKED)
@pytest.mark.parametrize("by", ["run", "verify"])
def test_a_folder_that_is_a_link_is_refused_and_nothing_is_deleted_where_it_leads(
    workflow, tmp_path, monkeypatch, folder, by
):
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    kill_after(2, workflow, run_dir, monkeypatch)
    os.rename(run_dir / folder, elsewhere)
    mine = [elsewhere / name for name in ("notes.txt", "c.99", "c.99.0", "000009.json", "zarr.json.partial")]
    for file in mine:
        file.write_text("mine")
    (run_dir / folder).symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=rf"{folder} is a symbolic link \(to {elsewhere}\)"):
        make_driver(workflow, run_dir, **SIZES) if by == "run" else verify(run_dir, repair=True)
    assert {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()} == before


def test_what_a_user_puts_into_a_run_directory_stays_when_the_run_goes_on(workflow, whole, tmp_path, monkeypatch):
    kill_after(2, workflow, tmp_path, monkeypatch)
    names = ["notes.txt", "x.partial", "reserve.txt", "reserved", "commits/notes.json", "commits/1.json"]
    names += ["table.zarr/notes", "table.zarr/rows/c.x.0", "table.zarr/keys/note.partial", "table.zarr/rows/c.1.0.bak"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "table.zarr/rows/c.999999.0").mkdir()
    assert make_driver(workflow, tmp_path, **SIZES).run()["fingerprint"] == whole["fingerprint"]
    assert verify(tmp_path, repair=True) == 0
    assert [(tmp_path / name).read_text() for name in names] == ["mine"] * len(names)
    assert (tmp_path / "table.zarr/rows/c.999999.0").is_dir()


def test_space_is_not_reserved_through_a_link(workflow, whole, tmp_path, monkeypatch):
    run_dir, mine = tmp_path / "run", tmp_path / "mine"
    kill_after(2, workflow, run_dir, monkeypatch)
    mine.write_text("mine")
    (run_dir / "reserve").unlink()
    (run_dir / "reserve").symlink_to(mine)
    assert make_driver(workflow, run_dir, **SIZES).run()["fingerprint"] == whole["fingerprint"]
    assert mine.read_text() == "mine"
