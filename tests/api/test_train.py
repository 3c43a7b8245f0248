"""Training from Python: the same run as the command's, settings by path, interrupts, and a run that can be used."""

import json
import os
import signal
import subprocess
import sys
import traceback
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch
from conftest import make_workflow, write_data

import pipeline
from pipeline.api import in_python
from pipeline.driver.open import check_main
from pipeline.driver.runner import StretchRunner
from pipeline.errors import PipelineError
from pipeline.monitor.runs import flat_settings
from pipeline.run import main
from pipeline.workflow import Workflow, load


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), num_train=60, num_keys=20)


@pytest.fixture
def workflow(root):
    return make_workflow(root)


def fingerprint(run_dir):
    return json.loads((run_dir / "result.json").read_bytes())["fingerprint"]


def test_a_call_trains_to_the_same_bits_as_the_command(workflow, root, tmp_path):
    file = tmp_path / "my.json"
    file.write_text(workflow.model_dump_json())
    assert main([str(file), "--run-dir", str(tmp_path / "command"), "--serial"]) == 0
    with pipeline.train(workflow, tmp_path / "call", serial=True) as run:
        scores = run.predict(pq.read_table(root / "test.parquet"))
        assert scores.column_names == ["click.logit", "click.probability"]
        assert fingerprint(tmp_path / "call") == fingerprint(tmp_path / "command")
        told = repr(run).splitlines()
    assert len(told) <= 10
    assert told[0].startswith(f"<OpenRun {tmp_path / 'call'}: commit 2 of small")


def test_a_finished_run_is_opened_and_not_trained_again(workflow, tmp_path, monkeypatch, capsys):
    with pipeline.train(workflow, tmp_path / "run", serial=True) as run:
        number = run.commit
    monkeypatch.setattr("pipeline.driver.session.open_session", None)
    with pipeline.train(workflow, tmp_path / "run", serial=True) as run:
        assert run.commit == number
    assert f"nothing to do: {tmp_path / 'run'} has ended after epoch 2" in capsys.readouterr().out


def test_settings_are_given_by_their_paths(workflow, tmp_path):
    with pipeline.train(workflow, tmp_path / "run", settings={"optimizer.rows.lr": 0.5, "schedule.epochs": 1}):
        pass
    kept = json.loads((tmp_path / "run" / "workflow.json").read_bytes())
    assert (kept["optimizer"]["rows"]["lr"], kept["schedule"]["epochs"]) == (0.5, 1)


def test_an_interrupted_call_commits_raises_and_can_resume(workflow, tmp_path, monkeypatch, capsys):
    with pipeline.train(workflow, tmp_path / "whole", serial=True):
        pass
    really, calls = StretchRunner.stretch, []

    def stretch(self, begin):
        calls.append(begin)
        os.kill(os.getpid(), signal.SIGINT)
        return really(self, begin)

    with monkeypatch.context() as patch:
        patch.setattr(StretchRunner, "stretch", stretch)
        with pytest.raises(KeyboardInterrupt):
            pipeline.train(workflow, tmp_path / "run", serial=True)
    with pipeline.open_run(tmp_path / "run") as run:
        assert run.commits.num_rows
        assert (run.finished, run.result) == (False, None)
        assert "not finished" in repr(run)
    assert len(calls) == 1
    assert "resumes" in capsys.readouterr().out
    with pipeline.train(workflow, tmp_path / "run", serial=True) as run:
        assert run.finished
        assert run.result["fingerprint"] == fingerprint(tmp_path / "whole")


@pytest.mark.prove
def test_a_model_class_of_the_script_itself_can_be_used(root, tmp_path):
    """Its class cannot be imported by anybody else."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import pyarrow.parquet as pq
import torch
from conftest import make_workflow
from pathlib import Path
import pipeline

class Mine(torch.nn.Module):
    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.top = torch.nn.Linear(embedding_dim, 1)

    def forward(self, numbers, embeddings, first):
        return self.top(embeddings.sum(1))[:, 0] + first.sum(1)

workflow = make_workflow(Path({str(root)!r}), kind=Mine, args={{}})
with pipeline.train(workflow, {str(tmp_path / "run")!r}, serial=True) as run:
    print(run.predict(pq.read_table({str(root / "test.parquet")!r})).num_rows)
""")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(pq.read_metadata(root / "test.parquet").num_rows)


def test_a_wrong_setting_raises_before_anything_is_made(workflow, tmp_path):
    with pytest.raises(ValueError, match=r"did you mean 'optimizer\.rows\.lr'"):
        pipeline.train(workflow, tmp_path / "run", settings={"optimizer.row.lr": 1})
    assert not (tmp_path / "run").exists()
    assert issubclass(PipelineError, RuntimeError)


class Squared(torch.nn.Module):
    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.top = torch.nn.Linear(embedding_dim, 1)

    def forward(self, numbers, embeddings, first):
        return self.top(embeddings.sum(1).square())[:, 0]


class NoLoss(Squared):
    def loss(self, output, labels, weights):
        return output.mean() * float("nan")


def test_a_setting_may_be_a_class(workflow, tmp_path, capsys):
    settings = {"model.kind": Squared, "schedule.epochs": 1, "optimizer": workflow.optimizer}
    with pipeline.train(workflow, tmp_path / "run", settings=settings, serial=True, verbose=False) as run:
        assert type(run.model) is Squared
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match=r"settings: model\.args: \{1\} is a set"):
        pipeline.train(workflow, tmp_path / "run", settings={"model.args": {1}})


def test_a_loss_that_is_not_finite_ends_in_a_short_message(workflow, tmp_path):
    with pytest.raises(PipelineError, match=r"loss of NoLoss \(.*test_train\.py, line \d+\) is nan") as caught:
        pipeline.train(workflow, tmp_path / "run", settings={"model.kind": NoLoss}, serial=True)
    assert "the same call" in str(caught.value)
    assert len(traceback.format_exception(caught.value)) < 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--set optimizer.row: no", "settings: optimizer.row: no"),
        ("with --set 'storage.disk=96 MiB', or --fresh", "with settings={'storage.disk': '96 MiB'}, or fresh=True"),
        ("the same command with --set workers.shards=2", "the same call with settings={'workers.shards': 2}"),
        ("to train on: --set 'schedule.epochs=N (more than 2)'",
         "to train on: settings={'schedule.epochs': 'N (more than 2)'}"),
    ],
)  # fmt: skip
def test_messages_name_the_arguments_of_the_call(text, said):
    assert in_python(text) == said


def test_what_is_no_workflow_is_refused_by_its_type(root):
    with pytest.raises(ValueError, match=r"takes a workflow or the file of one, got a Table; .*`pipeline init FILE`"):
        pipeline.train(pq.read_table(root / "test.parquet"))


@pytest.mark.parametrize(
    ("guard", "text"), [(False, "print(__name__)"), (True, "if __name__ == '__main__':\n    pass")]
)
def test_a_script_without_a_main_guard_is_refused_workers(tmp_path, monkeypatch, workflow, guard, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
    if guard:
        return check_main()
    with pytest.raises(ValueError, match=r"script\.py has no `if __name__ == \"__main__\":`"):
        pipeline.train(workflow, tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()


def test_a_script_on_standard_input_is_refused_workers(tmp_path, monkeypatch, workflow):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="<stdin>"))
    said = r"standard input, and workers .* write it to a file, or train with one worker"
    with pytest.raises(ValueError, match=said):
        pipeline.train(workflow, tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_workflow_in_json_or_toml_is_that_in_python(workflow, root, tmp_path, suffix):
    fields = workflow.model_dump(mode="json", exclude_none=True)
    fields["data"]["root"] = os.path.relpath(root, tmp_path)
    file = tmp_path / f"my.{suffix}"
    toml = "\n".join(f"{path} = {inline(value)}" for path, value in flat_settings(fields))
    file.write_text(json.dumps(fields | {"$schema": "s.json"}) if suffix == "json" else toml)
    assert load(file).model_dump_json() == workflow.model_copy(
        update={"data": workflow.data.model_copy(update={"root": tmp_path / os.path.relpath(root, tmp_path)})}
    ).model_dump_json()  # fmt: skip


def inline(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {inline(inner)}" for name, inner in value.items()) + "}"
    return "[" + ", ".join(map(inline, value)) + "]" if isinstance(value, list) else json.dumps(value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "a.json: "),
        ("a.json", "[]", "expected an object with the fields of a workflow, got list"),
        ("a.toml", "name = 'x'\n[dta]", "Workflow has no field 'dta'; did you mean 'data'?"),
        ("b.json", None, "there is no such file or folder"),
    ],
)
def test_a_wrong_workflow_in_text_is_named_with_the_field(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        load(tmp_path / name)


def test_a_workflow_file_finds_its_neighbours(root, tmp_path):
    (tmp_path / "neighbour_of_a_workflow.py").write_text("SEED = 77\n")
    (tmp_path / "my.py").write_text(
        "from neighbour_of_a_workflow import SEED\nfrom conftest import make_workflow\nfrom pathlib import Path\n"
        f"workflow = make_workflow(Path({str(root)!r})).model_copy(update={{'seed': SEED}})\n"
    )
    assert load(tmp_path / "my.py").seed == 77


def test_the_schema_describes_every_field_of_a_workflow(capsys):
    from pipeline.init.schema import main as schema

    assert schema([]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["properties"].keys() - {"$schema"} == Workflow.model_fields.keys()
    assert "label" in json.dumps(told["$defs"]["Data"])
