"""`pipeline score`: an output file has the rows of its input in order, with the bits of the run's evaluation."""

import json
import shutil
import signal
import subprocess
import sys
import traceback
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import make_table, make_workflow, write_data
from support.data.parquet_files import with_columns
from support.oracle.worker_cases import Squared
from support.runs.evaluated_runs import bits_of, train_and_evaluate
from support.runs.forked_commands import killed_and_finished
from support.runs.waiting_runs import gated
from test_stop import ROOT

from pipeline.api import Category, Data, DeepFM, Model, Schedule, Storage, Workflow, train
from pipeline.cluster.local_crew import LocalCrew
from pipeline.metrics.evaluation import Evaluation
from pipeline.records import Refusal
from pipeline.serving.commit import open_commit
from pipeline.serving.score import main
from pipeline.serving.scored_files import ColumnReader, ScoreWriter
from pipeline.serving.scoring import Scorer
from pipeline.storage.shards import most_keys
from pipeline.workflow import Commit, Metrics, load

NUM_TEST = 160
KEPT = {
    "view": pa.array(["A" * 36] * NUM_TEST, pa.string_view()),
    "uuid": pa.array([b"U" * 16] * NUM_TEST, pa.uuid()),
    "bytes": pa.array([b"B" * 16] * NUM_TEST, pa.binary(16)),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Test data in three files, which end within batches of six."""
    root = write_data(tmp_path_factory.mktemp("data"), num_train=90, num_keys=60)
    (root / "test.parquet").unlink()
    table = make_table(np.random.default_rng(9), NUM_TEST, 60)
    table = pa.table(dict(zip(table.column_names, table.columns, strict=True)) | KEPT)
    for name, begin, end in (("test-a", 0, 14), ("test-b", 14, 15), ("test-c", 15, NUM_TEST)):
        pq.write_table(table.slice(begin, end - begin), root / f"{name}.parquet", row_group_size=5)
    return root


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    workflow = make_workflow(root, weight="importance").model_copy(
        update={"metrics": Metrics(group="user"), "commit": Commit(keep=9)}
    )
    return train_and_evaluate(workflow, tmp_path_factory.mktemp("run"))


def score(trained, out, *arguments, data=None, commit="last", exits=0):
    files = data or [f"{trained.workflow.data.root}/test-*.parquet"]
    assert main([str(trained.run_dir), *map(str, files), "--out", str(out), "--commit", commit, *arguments]) == exits


def scored(out):
    return pa.concat_tables([pq.read_table(path) for path in sorted(out.rglob("*.parquet"))])


def contents(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_scores_have_the_bits_of_the_evaluation(trained, tmp_path, capsys):
    kept = ["item", "history", *KEPT]
    score(trained, tmp_path / "out", "--keep", *kept)
    for name in ("test-a", "test-b", "test-c"):
        given = pq.read_table(trained.workflow.data.root / f"{name}.parquet")
        found = pq.read_table(tmp_path / "out" / f"{name}.parquet")
        assert found.column_names == [*kept, "click.logit", "click.probability"]
        assert found.select(kept).equals(given.select(kept))
    table = scored(tmp_path / "out")
    assert (bits_of(table) == trained.logits_NT.view(np.uint32)).all()
    logits = table.column("click.logit").to_numpy().astype(np.float64)
    assert np.array_equal(table.column("click.probability").to_numpy(), (1 / (1 + np.exp(-logits))).astype(np.float32))
    said = capsys.readouterr().out
    reported = trained.result["epochs"][-1]
    for name in ("auc", "logloss", "ne", "calibration", "gauc"):
        assert f"{name} {reported[name]:.5f}" in said


def test_metadata_name_commit_fingerprint_and_features(trained, tmp_path):
    score(trained, tmp_path / "out")
    metadata = pq.read_schema(tmp_path / "out" / "test-b.parquet").metadata
    assert metadata[b"pipeline.commit"].decode() == str(trained.result["commit"])
    assert metadata[b"pipeline.fingerprint"].decode() == trained.result["fingerprint"]
    assert len(metadata[b"pipeline.features"]) == len(metadata[b"pipeline.manifest"]) == 16


def test_data_without_labels_weights_and_groups_are_scored(trained, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in trained.workflow.data.root.glob("test-*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(["click", "importance"]), bare / path.name, row_group_size=5)
    score(trained, tmp_path / "out", data=[bare])
    assert (bits_of(scored(tmp_path / "out")) == trained.logits_NT.view(np.uint32)).all()
    assert "auc" not in capsys.readouterr().out


def test_folders_keep_their_layout(trained, tmp_path):
    data = tmp_path / "data"
    for name in ("x/a.parquet", "x/y/a.parquet", "b.parquet"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(trained.workflow.data.root / "test-b.parquet", data / name)
    pq.write_table(pq.read_table(data / "b.parquet").slice(0, 0), data / "empty.parquet")
    score(trained, tmp_path / "out", data=[data])
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")}
    assert found == {"x/a.parquet", "x/y/a.parquet", "b.parquet", "empty.parquet"}
    assert pq.read_metadata(tmp_path / "out" / "empty.parquet").num_rows == 0


def test_files_without_rows_are_scored(trained, tmp_path, capsys):
    """All of them, and one that is left alone at the end."""
    empty = tmp_path / "data" / "b.parquet"
    empty.parent.mkdir()
    table = pq.read_table(trained.workflow.data.root / "test-a.parquet")
    pq.write_table(table.slice(0, 0), empty)
    score(trained, tmp_path / "out", "--keep", "item", data=[empty])
    assert pq.read_table(tmp_path / "out" / "b.parquet").shape == (0, 3)
    pq.write_table(table.slice(0, 6), empty.with_name("a.parquet"))
    score(trained, tmp_path / "two", data=[empty.parent])
    whole = contents(tmp_path / "two")
    (tmp_path / "two" / "b.parquet").unlink()
    score(trained, tmp_path / "two", data=[empty.parent])
    assert contents(tmp_path / "two") == whole


def test_null_labels_cost_the_metrics_alone(trained, tmp_path, capsys):
    table = pq.read_table(trained.workflow.data.root / "test-a.parquet")
    file = tmp_path / "a.parquet"
    pq.write_table(with_columns(table, click=pa.nulls(len(table), table.schema.field("click").type)), file)
    score(trained, tmp_path / "out", data=[file])
    assert "no metrics: " in (said := capsys.readouterr().out)
    assert "'click' (data.labels): 14 bad values" in said
    assert (bits_of(scored(tmp_path / "out")) == trained.logits_NT[:14].view(np.uint32))[:12].all()
    pq.write_table(with_columns(table, click=pa.array(["yes"] * len(table))), file)
    score(trained, tmp_path / "other", data=[file], exits=2)
    assert "'click' (data.labels)" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_file_that_changes_while_it_is_scored_is_refused(trained, tmp_path, monkeypatch, capsys):
    """It is replaced after its rows were read for scores, and before the kept columns are."""
    file = tmp_path / "a.parquet"
    table = pq.read_table(trained.workflow.data.root / "test-c.parquet").drop_columns("view")
    write = ScoreWriter._write

    def replaced(self, scored_file):
        pq.write_table(table.slice(0, 20).sort_by("item"), file)
        return write(self, scored_file)

    for number, rows in enumerate((20, 30)):
        pq.write_table(table.slice(0, rows), file)
        with monkeypatch.context() as patch:
            patch.setattr(ScoreWriter, "_write", replaced)
            score(trained, tmp_path / f"out{number}", "--keep", "item", data=[file], exits=2)
        capsys.readouterr()
        assert not (tmp_path / f"out{number}" / "a.parquet").exists()


@pytest.mark.parametrize("missing", [("test-b", "test-c"), ("test-a", "test-c"), ()])
def test_scoring_goes_on_with_the_files_that_are_left(trained, tmp_path, missing):
    score(trained, tmp_path / "out", "--keep", "user")
    whole = contents(tmp_path / "out")
    for name in missing:
        (tmp_path / "out" / f"{name}.parquet").unlink()
    (tmp_path / "out" / "_scoring").mkdir()
    (tmp_path / "out" / "_scoring" / "test-c.parquet.0123456789.partial").write_bytes(b"half")
    score(trained, tmp_path / "out", "--keep", "user")
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep", "item"], "keep was (), is ('item',); --fresh moves it aside, --out names another folder"),
        (["--commit", "1"], "another scoring: commit was"),
        (["--bad-values", "null"], "another scoring: bad_values was clip, is null"),
        (["--fresh", "--keep", "prize"], "--keep prize: not all files have this column"),
        (["--fresh", "--keep", "item", "item"], "two columns of this name"),
        (["--commit", "99"], "has no commit 99"),
    ],
)  # fmt: skip
def test_another_scoring_is_refused_and_nothing_changes(trained, tmp_path, monkeypatch, capsys, arguments, said):
    """Before the run is opened, where the arguments alone show it."""
    score(trained, tmp_path / "out")
    before = contents(tmp_path / "out")
    if arguments[0] == "--keep":
        monkeypatch.setattr("pipeline.serving.commit.open_commit", None)
    score(trained, tmp_path / "out", *arguments, exits=2)
    assert said in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


def test_fresh_moves_another_scoring_aside(trained, tmp_path, capsys):
    score(trained, tmp_path / "out")
    before = contents(tmp_path / "out")
    score(trained, tmp_path / "out", "--keep", "item", "--fresh")
    assert f"what was in {tmp_path / 'out'} is now {tmp_path / 'out.1'}" in capsys.readouterr().err
    assert contents(tmp_path / "out.1") == before
    assert "item" in pq.read_schema(tmp_path / "out" / "test-b.parquet").names


def test_fresh_never_moves_the_data_or_the_run(trained, tmp_path, capsys):
    root, run_dir = trained.workflow.data.root, trained.run_dir
    score(trained, root, "--fresh", exits=2)
    assert "which is to be scored" in capsys.readouterr().err
    score(trained, run_dir, "--fresh", exits=2)
    assert "holds the run" in capsys.readouterr().err
    assert root.is_dir()
    assert run_dir.is_dir()


def write_with(trained, file, **columns):
    table = pq.read_table(trained.workflow.data.root / "test-c.parquet")
    pq.write_table(with_columns(table, **columns), file, row_group_size=50)
    return table


def with_bad_age(trained, file):
    """Write a file whose row 60, in its second row group, has an age below the domain of log1p."""
    ages = pq.read_table(trained.workflow.data.root / "test-c.parquet").column("age").to_pylist()
    write_with(trained, file, age=pa.array([*ages[:60], -5, *ages[61:]], pa.int32()))


def test_one_bad_number_costs_no_other_row_its_score(trained, tmp_path, capsys):
    with_bad_age(trained, bad := tmp_path / "bad.parquet")
    for rule, what in (("clip", "scored with the nearest value inside"), ("null", "its row has no score")):
        score(trained, tmp_path / rule, "--bad-values", rule, data=[bad])
        said = capsys.readouterr()
        assert f"'age': 1 bad value, the first is -5 at row 60 of {bad}; {what}" in said.err
        assert "auc" in said.out
    clip, null = scored(tmp_path / "clip"), scored(tmp_path / "null")
    assert [at for at, value in enumerate(null.column("click.logit").to_pylist()) if value is None] == [60]
    assert null.column("click.probability").null_count == 1
    others = [at for at in range(len(clip)) if at != 60]
    assert (bits_of(clip.take(others)) == bits_of(null.take(others))).all()
    score(trained, tmp_path / "refuse", "--bad-values", "refuse", data=[bad], exits=1)
    assert "'age' (data.numbers): 1 bad value, the first is -5 at row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind"), [("age", pa.int32()), ("click", pa.int8()), ("history", pa.list_(pa.int64()))]
)
def test_a_file_whose_column_has_no_type_is_scored_as_nulls(trained, tmp_path, name, kind):
    write_with(trained, tmp_path / "none.parquet", **{name: pa.nulls(NUM_TEST - 15)})
    write_with(trained, tmp_path / "typed.parquet", **{name: pa.nulls(NUM_TEST - 15, kind)})
    for which in ("none", "typed"):
        score(trained, tmp_path / which, data=[tmp_path / f"{which}.parquet"])
    assert (bits_of(scored(tmp_path / "none")) == bits_of(scored(tmp_path / "typed"))).all()


def test_an_output_folder_that_holds_something_else_is_refused(trained, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("kept")
    score(trained, tmp_path, exits=2)
    assert f"{tmp_path} has other files than a scoring of this version: mine.txt; " in capsys.readouterr().err
    score(trained, trained.workflow.data.root, exits=2)
    assert "has other files than a scoring" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_data_of_another_kind_are_refused_with_the_column(trained, tmp_path, capsys):
    write_with(trained, tmp_path / "texts.parquet", item=pa.array(["a"] * (NUM_TEST - 15)))
    score(trained, tmp_path / "out", data=[tmp_path / "texts.parquet"], exits=2)
    assert "'item' (data.categories) holds text, expected integers as in the training data" in capsys.readouterr().err
    score(trained, tmp_path / "out", data=[tmp_path / "nothing-*"], exits=2)
    assert "matches no Parquet file" in capsys.readouterr().err


def test_a_signal_ends_a_scoring_which_the_same_command_finishes(trained, tmp_path, monkeypatch, capsys):
    score(trained, tmp_path / "whole")
    take = Scorer._take

    def interrupted(self, done, progress):
        take(self, done, progress)
        if done.trained and self._done >= 15 and not self._signal:
            signal.raise_signal(signal.SIGINT)

    # In the handler itself only `interrupt` may be called: `pause` waits for workers.
    pause, paused_in = LocalCrew.pause, []

    def noted(self, why):
        paused_in.append([frame.name for frame in traceback.extract_stack()])
        pause(self, why)

    monkeypatch.setattr(LocalCrew, "pause", noted)
    monkeypatch.setattr(LocalCrew, "interrupt", lambda self, why: None)
    monkeypatch.setattr(Scorer, "_take", interrupted)
    score(trained, tmp_path / "out", exits=130)
    assert paused_in
    assert not any("_stop" in names for names in paused_in)
    assert "the same command scores the others" in capsys.readouterr().err
    monkeypatch.undo()
    assert not (tmp_path / "out" / "test-c.parquet").exists()
    score(trained, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


OWN = """
from pipeline.workflow import Workflow
import torch
from support.oracle.worker_cases import Squared as Parent

class Mine(Parent):
    pass

workflow = Workflow.model_validate_json({text!r})
"""


def test_a_class_of_a_workflow_file_is_scored_elsewhere(root, tmp_path, monkeypatch, capsys):
    text = make_workflow(root, kind=Squared, args={}).model_dump_json()
    file = tmp_path / "mine.py"
    file.write_text(OWN.format(text=text.replace("support.oracle.worker_cases.Squared", "workflow_mine.Mine")))
    run = train_and_evaluate(load(file), tmp_path / "run")
    monkeypatch.chdir("/")
    score(run, tmp_path / "out", exits=2)
    assert "give the workflow's file with --workflow" in capsys.readouterr().err
    score(run, tmp_path / "out", "--workflow", str(file))
    assert (bits_of(scored(tmp_path / "out")) == run.logits_NT.view(np.uint32)).all()
    capsys.readouterr()
    # Settings of the run come from its commit, not from the file, and the file may have others by now.
    changes = {'"seed":7': '"seed":8', '"lr":0.05': '"lr":0.06', "    pass": "    extra = 1"}
    for before, after in changes.items():
        file.write_text(file.read_text().replace(before, after))
    score(run, tmp_path / "other", "--workflow", str(file))
    assert (bits_of(scored(tmp_path / "other")) == run.logits_NT.view(np.uint32)).all()
    edited = "warning: the file of model.kind workflow_mine.Mine, or one that it imports, was edited"
    assert edited in capsys.readouterr().err
    score(run, tmp_path / "out", "--workflow", str(file), exits=2)
    assert "out holds another scoring: code was file 3." in capsys.readouterr().err
    file.write_text(file.read_text().replace("Mine", "Other"))
    score(run, tmp_path / "third", "--workflow", str(file), exits=2)
    assert "the file's model.kind is 'workflow_mine.Other', and that of" in capsys.readouterr().err


def test_a_small_file_is_scored_with_a_commit_of_many_keys(tmp_path, capsys):
    """The map is chosen for the commit's keys, also if the file has few; a cap that is too small for them is named."""
    users = pa.table({"user": np.arange(30_000), "click": np.arange(30_000, dtype=np.int8) % 2})
    for name, table in {"train": users, "test": users.slice(7, 20)}.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    data = Data(root=tmp_path, train=("train.parquet",), labels=("click",), categories=(Category(name="user"),))
    workflow = Workflow(
        name="many", data=data, model=Model(kind=DeepFM, embedding_dim=2, args={"hidden": (2,)}),
        storage=Storage(memory="2 GiB"), schedule=Schedule(batch_size=5000, epochs=1, threads=1), device="cpu",
    )  # fmt: skip
    train(workflow, tmp_path / "run").close()
    (tmp_path / "small.json").write_text(workflow.with_settings({"storage.map": "700 KiB"}).model_dump_json())
    arguments = [str(tmp_path / "run"), str(tmp_path / "test.parquet"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--workflow", str(tmp_path / "small.json")]) == 2
    assert "storage.map is 700 KiB, but the 30,000 keys of the commit need more" in capsys.readouterr().err
    assert main(arguments) == 0
    assert len(scored(tmp_path / "out")) == 20


def command(*arguments):
    return [sys.executable, "-m", *map(str, arguments)]


@pytest.fixture(scope="module")
def by_two(root, tmp_path_factory):
    """Arguments of a scoring of a run of two workers, and what two workers have scored."""
    folder = tmp_path_factory.mktemp("two")
    (file := folder / "two.json").write_text(make_workflow(root).model_dump_json())
    subprocess.run(command("pipeline.run", file, "--run-dir", folder / "run", "--workers", 2), cwd=ROOT, check=True)
    arguments = [str(folder / "run"), f"{root}/test-*.parquet", "--commit", "last"]
    score_in_process(arguments, folder / "out", "--workers", "2")
    return arguments, folder / "out"


def score_in_process(arguments, out, *more):
    """Run in a separate process."""
    subprocess.run(command("pipeline.serving.score", *arguments, "--out", out, *more), cwd=ROOT, check=True)


@pytest.mark.prove
def test_two_workers_score_the_bits_of_a_run_of_two_workers(root, by_two, tmp_path):
    arguments, out = by_two
    score_in_process(arguments, tmp_path / "one")
    two, one = scored(out), scored(tmp_path / "one")
    assert np.abs(two.column(0).to_numpy() - one.column(0).to_numpy()).max() < 1e-5
    truth = pa.concat_tables([pq.read_table(path) for path in sorted(root.glob("test-*.parquet"))])
    labels_N1 = truth.column("click").to_numpy().astype(np.float32)[:, None]
    evaluation = Evaluation(("click",))
    evaluation.add(two.column("click.logit").to_numpy()[:, None], labels_N1)
    reported = json.loads((Path(arguments[0]) / "result.json").read_text())["epochs"][-1]
    found = evaluation.result()
    assert found["auc"] == reported["auc"]
    # Another bit in one logit moves the sum by 1e-10 and more, another order of its terms by 1e-15.
    assert abs(found["logloss"] - reported["logloss"]) < 1e-13


@pytest.mark.prove
def test_a_scoring_knows_the_keys_of_its_fullest_worker(by_two):
    with closing(open_commit(Path(by_two[0][0])).held) as held:
        shards = [held.manifest.part([shard]).live_rows for shard in range(held.manifest.num_shards)]
        assert most_keys(held.manifest.keys_of_shards, 1) == sum(shards) == held.manifest.live_rows
        assert most_keys(held.manifest.keys_of_shards, len(shards)) == max(shards)


@pytest.mark.prove
def test_a_killed_scoring_of_two_workers_resumes(by_two, tmp_path):
    """Killed while two files are whole and the third is begun, in the middle of a batch."""
    arguments, whole = by_two
    more = ["--out", str(tmp_path / "out"), "--workers", "2"]
    place = "pipeline.serving.scored_files:ScoreWriter._take"
    with gated(place, 3, [*arguments, *more], command="pipeline.serving.score") as process:
        left = [path.name.partition(".")[0] for path in (tmp_path / "out" / "_scoring").glob("*.partial")]
        process.kill()
    # Its workers end as well, or the pipes would stay open.
    process.communicate(timeout=60)
    assert left == ["test-c"]
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.parquet")) == ["test-a", "test-b"]
    score_in_process(arguments, *more[1:])
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.prove
def test_kills_of_a_scoring_leave_the_same_bytes(trained, tmp_path):
    arguments = [trained.run_dir, f"{trained.workflow.data.root}/test-*.parquet", "--keep", "item"]
    subprocess.run(command("pipeline.serving.score", *arguments, "--out", tmp_path / "whole"), cwd=ROOT, check=True)
    for out in killed_and_finished(main, arguments, tmp_path, seed=3):
        assert contents(out) == contents(tmp_path / "whole")


def test_a_folder_of_scores_is_a_dataset_even_if_unfinished(trained, tmp_path):
    score(trained, tmp_path / "out", "--keep", "item")
    assert set(contents(tmp_path / "out")) == {"test-a.parquet", "test-b.parquet", "test-c.parquet"}
    expected = scored(tmp_path / "out").replace_schema_metadata()
    with suppress(ImportError):
        import polars

        assert polars.read_parquet(tmp_path / "out").to_arrow()["item"].to_pylist() == expected["item"].to_pylist()
    (tmp_path / "out" / "_scoring").mkdir()
    (tmp_path / "out" / "_scoring" / "test-c.parquet.0123456789.partial").write_bytes(b"half")
    assert ds.dataset(tmp_path / "out").to_table().replace_schema_metadata().equals(expected)


def test_a_file_that_loses_rows_while_it_is_scored_is_named(tmp_path):
    pq.write_table(pa.table({"item": [1, 2, 3]}), tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        reader = ColumnReader(tmp_path / "a.parquet", file, ["item"])
        with pytest.raises(ValueError, match=r"a\.parquet has fewer rows than when the scoring began, 2 at least"):
            reader.take(5)


def test_a_batch_over_the_caps_ends_the_scoring_with_a_reason(trained, tmp_path, monkeypatch, capsys):
    def refuse(self, blocks, look_ahead, watch):
        return Refusal(next(iter(blocks)), "map", "the key map is full")

    monkeypatch.setattr(LocalCrew, "run", refuse)
    score(trained, tmp_path / "out", exits=1)
    assert "scoring was refused: the key map is full" in capsys.readouterr().err
