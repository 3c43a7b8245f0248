"""The command line: anything wrong before the run is one message and exit code 2, never a traceback."""

import json
import os
import re
import shlex

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import run
from pipeline.arguments import train_arguments
from pipeline.data.files import SPLITS
from pipeline.device.device import RAM
from pipeline.driver import open as config
from pipeline.machine import limits
from pipeline.machine.affinity import GpuInfo, Topology
from pipeline.messages.sizes import MemoryShare, parse_size
from pipeline.models import DCNv2
from pipeline.monitor.page import report
from pipeline.preflight import sizes
from pipeline.preflight.setup import set_up
from pipeline.run import main
from pipeline.settings.changes import override
from pipeline.settings.optimizer import Adagrad
from pipeline.storage.lock import RunLock

WORKFLOW = """
from pipeline.models import DeepFM
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Workflow

workflow = Workflow(
    name="tiny",
    data=Data(
        root="{root}",
        train=("train.parquet",),
        validation=("validation.parquet",),
        labels=("label",),
        numbers=(Number(name="i0"),),
        categories=(Category(name="c0"), Category(name="c1")),
    ),
    model=Model(kind=DeepFM, embedding_dim=2, args={{"hidden": [4]}}),
    storage=Storage(device="1 MiB", host="1 MiB", disk="64 MiB", read="4 MiB", map="1 MiB"),
    schedule=Schedule(batch_size=8, block_batches=2, look_ahead=1, threads=1),
)
"""


def make_columns(num_examples=40):
    rng = np.random.default_rng(0)
    integers = {name: rng.integers(0, 9, num_examples) for name in ("c0", "c1")}
    return integers | {"label": rng.integers(0, 2, num_examples), "label2": rng.integers(0, 2, num_examples),
                       "i0": rng.random(num_examples), "text": [f"t{n}" for n in range(num_examples)]}  # fmt: skip


@pytest.fixture
def workflow_file(tmp_path, monkeypatch):
    """A valid workflow and its data; the run directory, too, lies in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    for split in SPLITS:
        pq.write_table(pa.table(make_columns()), tmp_path / f"{split}.parquet")
    path = tmp_path / "tiny.py"
    path.write_text(WORKFLOW.format(root=tmp_path))
    return path


@pytest.fixture
def refused(capsys, tmp_path):
    """Runs, expects exit code 2 and one message on stderr, and gives that; no run directory may be left."""

    def run(*argv):
        assert main([str(arg) for arg in argv]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert "Traceback" not in out + err
        assert len(err.removeprefix("error: ").strip()) > 10
        assert all(line.startswith("       ") for line in err.splitlines()[1:]), "a second message"
        assert not (tmp_path / "runs" / "tiny").exists()
        return err

    return run


def test_the_command_line_has_exactly_the_listed_flags():
    """People and scripts rely on them: change CHANGELOG.md with this list. --run-dir is an old name of --out."""
    flags = {flag for action in train_arguments()._actions for flag in action.option_strings or [action.dest]}
    assert flags == {
        "workflow",
        "-h",
        "--help",
        "--set",
        "--out",
        "--run-dir",
        "--fresh",
        "--serial",
        "--all",
        "--explain",
        "--price",
        "--json",
        "--workers",
        "--scheduler",
        "--dashboard",
    }


def test_a_missing_workflow_file_is_named(refused, tmp_path):
    assert f"{tmp_path / 'none.py'} is not a file" in refused(tmp_path / "none.py")
    assert "is not a file" in refused(tmp_path)


def test_a_file_without_the_python_suffix_is_refused(refused, tmp_path):
    (tmp_path / "tiny.yaml").write_text("")
    assert "is not a Python file" in refused(tmp_path / "tiny.yaml")


@pytest.mark.parametrize("text", ["", "workflow = {'name': 'tiny'}", "work_flow = None"])
def test_a_file_without_a_workflow_is_refused(refused, tmp_path, text):
    path = tmp_path / "empty.py"
    path.write_text(text)
    assert f"{path} has no module-level `workflow`" in refused(path)


def test_a_failing_import_of_the_workflow_file_is_named(refused, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_at_all")
    assert "no_such_module_at_all" in refused(path)


def test_every_invalid_field_of_the_file_is_named(refused, workflow_file):
    workflow_file.write_text(workflow_file.read_text().replace("batch_size=8", "batch_size=0, look_ahed=1"))
    err = refused(workflow_file)
    assert f"{workflow_file}, line 17: Schedule.batch_size: expected at least 1 (got 0)" in err
    assert f"{workflow_file}, line 17: Schedule has no field 'look_ahed'; did you mean 'look_ahead'?" in err


@pytest.mark.parametrize("depth", [400, 900, 3000, 100_000])
def test_a_value_nested_too_deeply_is_refused_in_one_message(refused, workflow_file, depth):
    assert "nested too deeply" in refused(workflow_file, "--set", f"seed={'[' * depth}{']' * depth}")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("schedule.batch_size", "expected a.b=value"),
        ("shedule.batch_size=3", "the workflow has no shedule"),
        ("schedule.batch.size=3", "the workflow has no schedule.batch"),
        ("optimizer.lr=3", "has no optimizer.lr; did you mean 'optimizer.rows.lr' or 'optimizer.dense.lr'?"),
        ("hidden=[3]", "the workflow has no hidden; did you mean 'model.args.hidden'?"),
        (
            "schedule.batchsize=3",
            "--set schedule.batchsize: Schedule has no field 'batchsize'; did you mean 'batch_size'?",
        ),
        ("data.synthetic.seed=3", "the workflow has no data.synthetic"),
        ("data.categories.0.name=c1", "the workflow has no data.categories.0"),
        ("=3", "Workflow has no field ''; it has name, data, model"),
        ("schedule.batch_size=many", "schedule.batch_size: expected a whole number (got 'many')"),
        ("schedule.batch_size=0", "schedule.batch_size: expected at least 1 (got 0)"),
        ("schedule.batch_size=2.5", "schedule.batch_size: "),
        ("storage.host=8 GB", 'storage.host: expected a size such as "8 GiB"'),
        ("optimizer.rows.lr=NaN", "optimizer.rows.lr: "),
        ("model=5", "model: "),
        ("model.kind=nowhere.Model", "model.kind: "),
        ("storage.host_policy=mru", "storage.host_policy: Input should be 'clock', 'lru'"),
        ('data.labels=["click"]', ["train.parquet: column 'click' (data.labels) is missing", "c0, c1, label"]),
        ('data.labels=["text"]', ["train.parquet: column 'text' (data.labels) has type"]),
        ('data.categories=[{"name":"i0x"}]', ["column 'i0x' (data.categories) is missing"]),
        ('data.categories=[{"name":"label2"},{"name":"label2"}]', ["named more than once: label2"]),
        ('data.train=["none.parquet"]', ["data.train", "'none.parquet'", "data.root"]),
        ('data.validation=["*.pq"]', ["data.validation", "'*.pq'", "data.root"]),
        ("data.root=/nowhere", ["/nowhere", "data.root"]),
        ('data.train=["tiny.py"]', ["tiny.py", "cannot be read as Parquet"]),
        (
            'data.labels=["label","label2"]',
            ["DeepFM fails", "of data.labels (label, label2). Take model.kind SharedBottom, MMoE", "with num_labels 2"],
        ),
        (
            'model.args={"hiden":[4]}',
            ["model.args: DeepFM has no 'hiden'; did you mean 'hidden'? It takes hidden, batch_norm, dropout"],
        ),
        ('model.args={"hidden":4}', ["model.args", "DeepFM"]),
        ('model.args={"zzz":4}', ["DeepFM has no 'zzz'. It takes hidden", "to leave it out: --set 'model.args={}'"]),
        ("storage.device=100 B", ["storage.device is 100 B", "needed are", "raise storage.device"]),
        ("storage.host=1 KiB", ["storage.host is 1 KiB", "needed are", "raise storage.host"]),
        ("storage.read=1 KiB", ["storage.read is 1 KiB", "raise storage.read"]),
        ('storage={"memory":"900 TiB"}', ["storage.memory is 900 TiB, and this machine has", "lower it"]),
        ("storage.device=900 TiB", ["storage.device, host, read and map add up to", "this machine has"]),
        ("model.kind=math.pi", "model.kind 3.14159"),
        ("model.kind=builtins.dict", "model.kind dict cannot be made with model.args: it makes a dict"),
        ('model.args={"hidden":[-1]}', "model.kind DeepFM cannot be made with model.args: hidden[0] is -1"),
        ("storage.map=0 B", "raise storage.map to"),
        ("storage.map=64 KiB", "storage.map is 64 KiB"),
        ("storage.disk=0 B", "raise storage.disk"),
        ("storage.disk=1 KiB", "raise storage.disk"),
        ('data.synthetic={"train_examples": 1, "keys_per_field": [0]}', "keys_per_field"),
        ("optimizer.dense.kind=sgd", "the dense part is always trained by Adam; optimizer.rows.kind chooses that"),
        ("metrics.group=user", "column 'user' (metrics.group) is missing"),
        ("--workers 0", "--workers 0: give at least 1"),
        ("--workers 17", "the table has 16 shards"),
        ("--dashboard :8787 --serial", "--serial has no dashboard"),
        ("--dashboard :8787 --scheduler tcp://127.0.0.1:9", "has its own dashboard"),
        *((f"--serial {other}", "--serial is for one worker in this process; leave it out") for other in (
            "--workers 2", "--workers 1", "--scheduler tcp://127.0.0.1:9",
        )),
    ],
)  # fmt: skip
def test_a_wrong_option_or_setting_is_refused(refused, workflow_file, option, said):
    """An option that begins with two dashes, or else a value of --set."""
    err = refused(workflow_file, *(option.split() if option.startswith("--") else ("--set", option)))
    assert not [part for part in ([said] if isinstance(said, str) else said) if part not in err]


def test_another_row_optimizer_keeps_given_fields_it_has(workflow_file):
    """The file gives no field of Adam; one that the other kind lacks is dropped."""
    settings = ["optimizer.rows.lr=0.5", "optimizer.rows.beta1=0.5", "optimizer.rows.kind=adagrad"]
    rows = override(run.load(workflow_file), settings).optimizer.rows
    assert rows == Adagrad(lr=0.5)
    assert override(run.load(workflow_file), settings[2:]).optimizer.rows == Adagrad()


def test_another_model_class_keeps_the_arguments_it_takes(workflow_file):
    args = {kind: override(run.load(workflow_file), [f"model.kind={kind}"]).model.args for kind in ("LR", "DCN")}
    assert args == {"LR": {}, "DCN": run.load(workflow_file).model.args}
    assert list(args["DCN"]) == ["hidden"]
    given = ["model.kind=LR", "model.args.hidden=[4]"]
    assert override(run.load(workflow_file), given).model.args == {"hidden": [4]}


def test_a_model_is_known_by_its_short_name(workflow_file):
    assert override(run.load(workflow_file), ["model.kind=DCNv2"]).model.kind is DCNv2


def test_a_failing_model_is_refused_with_its_file_and_line(refused, workflow_file):
    text = workflow_file.read_text()
    own = """from torch import nn
from torch.nn.functional import linear


class Mine(nn.Module):
    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()

    def forward(self, numbers, embeddings, first_order):
        return linear(embeddings, numbers.squeez(1))


"""
    workflow_file.write_text(own + text.replace("kind=DeepFM", "kind=Mine").replace('{"hidden": [4]}', "{}"))
    assert f"no attribute 'squeez' ({workflow_file}, line 10)" in refused(workflow_file)
    workflow_file.write_text(workflow_file.read_text().replace(".squeez(1)", ""))
    assert f"({workflow_file}, line 10)" in refused(workflow_file), "the error is raised within torch"


def test_a_missing_label_is_refused_with_its_row_group(refused, workflow_file, tmp_path):
    columns = make_columns()
    labels = [None, *columns.pop("label")[1:].tolist()]
    pq.write_table(pa.table(columns | {"label": pa.array(labels, pa.int8())}), tmp_path / "train.parquet")
    err = refused(workflow_file)
    assert "train.parquet" in err
    assert "'label'" in err
    assert "row group 0" in err


def test_a_data_file_cut_short_is_refused(refused, workflow_file, tmp_path):
    path = tmp_path / "train.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    assert f"{path}: cannot be read as Parquet" in refused(workflow_file)


def test_explain_shows_the_bytes_and_trains_nothing(workflow_file, tmp_path, capsys):
    before = set(tmp_path.iterdir())
    assert main([str(workflow_file), "--explain", "--all", "--set", "seed=12345"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("tiny: DeepFM on ")
    assert "steps:    5 of 8 examples" in out
    assert "\nfits" in out
    lines = [line for line in out.splitlines() if re.match(r"[\d.]+ [KMGT]?i?B   ", line[22:].strip())]
    num_bytes = {line[:22].strip(): parse_size(line[22:].strip().partition("   ")[0]) for line in lines}
    parts = {
        "device": ["device slab", "device outgoing ring"],
        "host": ["host slab", "host staging ring", "host chunk buffer"],
    }
    for names in parts.values():
        assert 0.9 * (1 << 20) < sum(num_bytes[name] for name in names) <= 1.01 * (1 << 20)
    assert num_bytes["read ring"] + num_bytes["shuffle window"] <= 4.1 * (1 << 20)
    assert num_bytes["key map"] == 1 << 20
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "__pycache__"}


def test_a_look_ahead_reduced_to_fit_is_reported_with_its_cap(workflow_file, capsys):
    """45 rows of 56 bytes: the window of the workflow does not fit, and less does."""
    assert main([str(workflow_file), "--explain", "--all", "--set", f"storage.device={56 * 45} B"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"look-ahead 0, blocks of 2 batches: storage.device is {56 * 45} B, 45 rows of 56 bytes; needed"
    )
    assert "\nlook-ahead 0, blocks of 2 batches\n" in out


def test_a_run_leaves_all_its_files_and_is_never_overwritten(workflow_file, tmp_path, capsys, monkeypatch):
    argv = [str(workflow_file), "--serial", "--set", 'data.test=["test.parquet"]']
    assert main(argv) == 0
    assert "error" not in capsys.readouterr().err
    run_dir = tmp_path / "runs" / "tiny"
    outputs = {"model.safetensors", "workflow.json", "metrics.jsonl", "result.json", "stretches.jsonl", "live.jsonl"}
    assert {"table.zarr", "commits", *outputs} == {path.name for path in run_dir.iterdir()}
    result = (run_dir / "result.json").read_bytes()
    assert json.loads(result)["examples"] == 40

    # All is done: the same command says so, and begins nothing; another workflow is refused as ever.
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.driver.session.open_session", None)
        patched.setattr("pipeline.preflight.setup.rehearse", None)
        assert main(argv) == main([*argv, "--set", "storage.host=2 MiB"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0] == "nothing to do: runs/tiny has ended after epoch 1, with commit 1"
        assert said[1].startswith("epoch 1 test: auc ")
        assert f"fingerprint {json.loads(result)['fingerprint']}" in said
        assert "schedule.epochs=N (more than 1)" in said[-1]
        assert "--fresh" in said[-1]
        assert main([*argv, "--set", "seed=1"]) == 2
        assert "seed: was 0, is 1" in capsys.readouterr().err
        assert main([*argv, "--set", "optimizer.dense.lr=0.5"]) == 2
        said = capsys.readouterr()
        assert "its results are not those of this workflow:\n       optimizer.dense.lr: was 0.001, is 0.5" in said.err
        assert "auc" not in said.out
    (run_dir / "model.safetensors").unlink()
    assert main(argv) == 0
    assert "holds all of the training" in capsys.readouterr().err
    assert (run_dir / "model.safetensors").exists()
    assert (run_dir / "result.json").read_bytes() == result

    assert main([*argv, "--fresh"]) == 0
    said = capsys.readouterr().out
    moved = re.search(
        r"^--fresh: what was in runs/tiny is now (.*) \((.*) [KM]iB\); to delete it: rm -r (.*)$", said, re.M
    )
    assert moved[1] == moved[3] == "runs/tiny.1"
    assert float(moved[2]) > 0
    assert (tmp_path / "runs" / "tiny.1" / "result.json").read_bytes() == result
    again = json.loads((run_dir / "result.json").read_bytes())
    assert again["fingerprint"] == json.loads(result)["fingerprint"]


@pytest.mark.prove
def test_a_run_names_the_command_of_its_report_and_starts_none(workflow_file, tmp_path, capsys):
    assert main([str(workflow_file), "--serial", "--run-dir", "a run", "--set", "data.test=[]"]) == 0
    (command,) = re.findall(r"^report: pipeline report (.*)$", capsys.readouterr().out, re.M)
    assert not [child for child in psutil.Process().children() if "report" in child.cmdline()]
    assert report.main(shlex.split(command)) == 0
    assert (tmp_path / "a run" / "report.html").is_file()


def test_a_folder_that_holds_no_run_is_refused_and_kept_by_fresh(refused, workflow_file, tmp_path):
    run_dir = tmp_path / "thesis"
    run_dir.mkdir()
    (run_dir / "chapter-1.txt").write_text("years of work")
    assert f"{run_dir} holds something else than a run; --fresh" in refused(workflow_file, "--run-dir", run_dir)
    assert [path.name for path in run_dir.iterdir()] == ["chapter-1.txt"]
    assert main([str(workflow_file), "--serial", "--run-dir", str(run_dir), "--fresh"]) == 0
    assert (tmp_path / "thesis.1" / "chapter-1.txt").read_text() == "years of work"


def test_a_run_directory_in_use_is_refused(refused, workflow_file, tmp_path):
    with RunLock(tmp_path / "runs" / "tiny"):
        assert f"tiny is in use by process {os.getpid()}" in refused(workflow_file, "--serial")
        assert f"tiny is in use by process {os.getpid()}" in refused(workflow_file, "--serial", "--fresh")
    assert not (tmp_path / "runs" / "tiny").exists()


def test_a_run_directory_that_is_a_file_is_refused(refused, workflow_file):
    assert "tiny.py" in refused(workflow_file, "--run-dir", workflow_file)


def test_a_run_that_ends_early_has_a_result_and_exit_code_1(workflow_file, tmp_path, capsys, monkeypatch):
    # Room for the first window's rows, and not for those of the whole run.
    monkeypatch.setattr(sizes, "bytes_for", lambda num_keys: 0)
    assert main([str(workflow_file), "--serial", "--set", "storage.map=64 KiB"]) == 1
    err = capsys.readouterr().err
    assert "error: stopped before block 0" in err
    assert "storage.map is 64 KiB, needed now 644 KiB" in err
    assert "the same command with --set 'storage.map=644 KiB' goes on from there" in err
    assert json.loads((tmp_path / "runs" / "tiny" / "result.json").read_text())["stopped"]
    assert (tmp_path / "runs" / "tiny" / "result.json").exists()


def test_a_model_class_of_the_workflow_file_survives_json(workflow_file, capsys):
    text = workflow_file.read_text().replace("workflow = ", "class Mine(DeepFM):\n    pass\n\nworkflow = ", 1)
    workflow_file.write_text(text.replace("kind=DeepFM", "kind=Mine"))
    assert main([str(workflow_file), "--explain", "--json", "--set", "seed=1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["workflow"]["model"]["kind"], told["workflow"]["seed"]) == ("workflow_tiny.Mine", 1)
    assert told["bytes"]["key map"] == 1 << 20


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("return embeddings_BFD.sum((1, 2)).unsqueeze(1)", "shape (2, 1), expected (2,)"),
        ("raise RuntimeError('no such layer')", "no such layer"),
        (
            "return embeddings_BFD.sum((1, 2))\n\n    def loss(self, output, labels, weights):\n        return output",
            "loss gives shape (2,), expected a single number",
        ),
    ],
)
def test_a_failing_forward_pass_is_refused_before_the_run(refused, workflow_file, forward, said):
    model = f"""class Mine(DeepFM):
    def forward(self, numbers_BX, embeddings_BFD, first_order_BF):
        {forward}

workflow = """
    text = workflow_file.read_text().replace("workflow = ", model, 1)
    workflow_file.write_text(text.replace("kind=DeepFM", "kind=Mine"))
    assert said in refused(workflow_file)


def test_a_batch_larger_than_the_data_is_accepted(workflow_file):
    assert main([str(workflow_file), "--explain", "--set", "schedule.batch_size=1000000"]) == 0


def test_metrics_asked_for_on_the_command_line_are_reported(workflow_file, tmp_path, capsys):
    asked = ["--set", "metrics.group=text", "--set", "metrics.progressive=true"]
    assert main([str(workflow_file), "--serial", *asked]) == 0
    lines = (tmp_path / "runs/tiny/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["split"] for line in lines] == ["train", "validation"]
    assert all(json.loads(line)["gauc_share"] == 0 for line in lines), "every text is another"
    assert "epoch 1 train (progressive, in training mode" in "".join(capsys.readouterr())


@pytest.mark.prove
def test_explain_counts_scores_of_groups_and_of_training(workflow_file, capsys):
    found = []
    for asked in ([], ["metrics.group=c0"], ["data.validation=[]"], ["data.validation=[]", "metrics.progressive=true"]):
        assert main([str(workflow_file), "--explain", "--all", *(f for a in asked for f in ("--set", a))]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("scores ")]
        found.append(line[22:].strip().partition("   ")[0])
    assert found == ["320 B", "1.6 KiB", "0 B", "320 B"]


def test_explain_is_short_and_with_all_lists_every_buffer(workflow_file, capsys):
    assert main([str(workflow_file), "--explain"]) == 0
    said, _, predicted = capsys.readouterr().out.partition("\nmeasuring ")
    assert len(said.splitlines()) <= 10
    assert len(predicted.splitlines()) <= 20
    assert main([str(workflow_file), "--explain", "--all"]) == 0
    out = capsys.readouterr().out
    names = ["device slab", "device outgoing ring", "host slab", "host staging ring", "host chunk buffer", "disk log"]
    for name in [*names, "read ring", "shuffle window", "key map", "batch", "scores", "slot marks"]:
        assert f"\n{name} " in out
    assert "12 to 16 bytes a key" in out


@pytest.mark.parametrize(("value", "kind"), [(1, pa.int8()), (0, pa.float32()), (1, pa.bool_())], ids=str)
def test_labels_that_are_all_the_same_are_warned_about(workflow_file, tmp_path, capsys, value, kind):
    labels = {"label": pa.array([value] * 40).cast(kind)}
    pq.write_table(pa.table(make_columns() | labels), tmp_path / "train.parquet", row_group_size=7)
    assert main([str(workflow_file), "--explain"]) == 0
    said = f"warning: all training labels of 'label' are {value}: there is nothing to learn; look at data.labels"
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith(said)]


def test_labels_whose_statistics_are_bytes_are_accepted(workflow_file, tmp_path, capsys):
    labels = {"label": pa.array([n % 2 for n in range(40)]).cast(pa.float16())}
    pq.write_table(pa.table(make_columns() | labels), tmp_path / "train.parquet", row_group_size=7)
    assert main([str(workflow_file), "--explain"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}], ids=["told", "unknown"])
def test_labels_of_two_or_unknown_values_cause_no_warning(workflow_file, tmp_path, capsys, options):
    labels = {"label": [int(n == 39 or bool(options)) for n in range(40)]}
    pq.write_table(pa.table(make_columns() | labels), tmp_path / "train.parquet", row_group_size=7, **options)
    assert main([str(workflow_file), "--explain"]) == 0
    assert capsys.readouterr().err == ""


def test_a_model_that_diverges_is_warned_about(workflow_file, capsys):
    rates = ["--set", "optimizer.rows.lr=1e9", "--set", "optimizer.dense.lr=1e9"]
    assert main([str(workflow_file), "--serial", *rates]) == 0
    assert "warning: ne of validation is " in capsys.readouterr().err


def test_a_folder_among_files_is_reported_and_refused_if_empty(refused, workflow_file, tmp_path, capsys):
    pattern = ["--set", 'data.train=["tr*"]']
    (tmp_path / "traces").mkdir()
    said = refused(workflow_file, *pattern)
    assert f"data.train: 'tr*' also matches {tmp_path}/traces, a folder without Parquet files; correct" in said
    (tmp_path / "traces/part.parquet").write_bytes((tmp_path / "train.parquet").read_bytes())
    assert main([str(workflow_file), "--explain", *pattern]) == 0
    assert "data.train: 'tr*' matches 2 names, of which 1 are folders (traces): the Parquet files in them are read" in (
        capsys.readouterr().err
    )
    assert main([str(workflow_file), "--explain", "--set", 'data.train=["traces"]']) == 0
    assert main([str(workflow_file), "--explain", "--set", 'data.train=["trac*"]']) == 0
    assert capsys.readouterr().err == "", "folders alone are meant"


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_share_of_memory_is_refused_for_workers_of_a_scheduler(refused, workflow_file, device):
    """Nobody listens there: that is not even looked at."""
    argv = ("--scheduler", "tcp://127.0.0.1:9", "--workers", 8, "--set", f"device={device}")
    said = refused(workflow_file, *argv, "--set", "storage.device=80 %")
    assert "storage.device is 80 %, and how much memory of the workers' machines is free is not known here" in said
    assert "give it as a size" in said


def test_a_processor_without_bfloat16_is_reported_before_the_run(small_workflow, monkeypatch):
    workflow = small_workflow()
    workflow = workflow.model_copy(update={"model": workflow.model.model_copy(update={"precision": "bfloat16"})})
    for fast in (True, False):
        monkeypatch.setattr("pipeline.preflight.setup.fast_in_bfloat16", lambda fast=fast: fast)
        said = []
        set_up(workflow, RAM, said.append)
        assert ["no instructions for it" in line for line in said] == [True] * (not fast)


def test_the_memory_of_this_machine_limits_only_its_own_workers(workflow_file, monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: 1 << 20)
    workflow = override(run.load(workflow_file), ["storage.disk=1 GiB"])
    set_up(workflow, RAM, run.say, 2, here=False)
    with pytest.raises(ValueError, match="map of 2 workers add up to"):
        set_up(workflow, RAM, run.say, 2)


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine as NVML reports it: 2 and 1 MiB are free."""
    gpus = tuple(GpuInfo(n, f"GPU-{n}", None, (2 - n) << 20) for n in range(2))
    monkeypatch.setattr(config, "gets_gpu", lambda name: name != "cpu")
    monkeypatch.setattr(config, "read_topology", lambda on_gpu: Topology({}, gpus))


def test_more_workers_than_gpus_are_refused_with_both_numbers(refused, workflow_file, two_gpus):
    said = refused(workflow_file, "--workers", 3, "--set", "device=cuda")
    assert "--workers 3: each needs its own GPU, and 2 can be used here (seen by NVML" in said
    assert "take fewer workers, or set device to cpu" in said


def test_a_slab_is_refused_unless_every_gpu_has_room_for_it(refused, workflow_file, two_gpus):
    said = refused(workflow_file, "--workers", 2, "--set", "device=auto", "--set", "storage.device=1.5 MiB")
    assert "storage.device is 1536 KiB, and 1 MiB of the GPU's memory are free" in said


def test_a_share_of_gpu_memory_is_taken_only_where_it_is_known(workflow_file, two_gpus, monkeypatch):
    workflow = run.load(workflow_file).model_copy(update={"device": "cuda"})
    storage = workflow.storage.model_copy(update={"device": MemoryShare(0.5)})
    share = workflow.model_copy(update={"storage": storage})
    device, spec = config.recruit(share, 2, None)
    assert (device.on_gpu, device.free_bytes(), [affinity.gpu.uuid for affinity in spec.affinities]) == (
        True, 1 << 20, ["GPU-0", "GPU-1"],
    )  # fmt: skip
    assert config.recruit(workflow, 9, "tcp://other:1")[0].on_gpu, "the scheduler's machines have other GPUs"
    with pytest.raises(ValueError, match=r"storage.device is 50%?.*not known here; give it as a size"):
        config.recruit(share, 2, "tcp://other:1")


def test_an_interrupt_while_a_run_closes_ends_it_with_a_message(workflow_file, tmp_path, capsys, monkeypatch):
    """Stages are not watched for signals any more then."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.cluster.local_crew.LocalCrew.close", interrupted)
    assert main([str(workflow_file), "--run-dir", str(tmp_path / "run"), "--serial"]) == 130
    assert "interrupted at its end: the commits are kept, and the same command resumes" in capsys.readouterr().err
