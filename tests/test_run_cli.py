"""The command `run`: anything wrong before a run is one message and exit code 2, never a traceback."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs.tiny_workflow import make_columns

from pipeline import run
from pipeline.models import DCNv2
from pipeline.run import main
from pipeline.settings.changes import override
from pipeline.settings.optimizer import Adagrad


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
        ("schedule.batch.size=3", "the workflow has no schedule.batch"),
        ("optimizer.lr=3", "has no optimizer.lr; did you mean 'optimizer.rows.lr' or 'optimizer.dense.lr'?"),
        ("hidden=[3]", "the workflow has no hidden; did you mean 'model.args.hidden'?"),
        ("=3", "Workflow has no field ''; it has name, data, model"),
        ("optimizer.rows.lr=NaN", "optimizer.rows.lr: "),
        ("model=5", "model: "),
        ("model.kind=nowhere.Model", "model.kind: "),
        ("storage.host_policy=mru", "storage.host_policy: Input should be 'clock', 'lru'"),
        ('data.labels=["click"]', ["train.parquet: column 'click' (data.labels) is missing", "c0, c1, label"]),
        ('data.labels=["text"]', ["train.parquet: column 'text' (data.labels) has type"]),
        ('data.categories=[{"name":"label2"},{"name":"label2"}]', ["named more than once: label2"]),
        ('data.train=["none.parquet"]', ["data.train", "'none.parquet'", "data.root"]),
        ('data.validation=["*.pq"]', ["data.validation", "'*.pq'", "data.root"]),
        ("data.root=/nowhere", ["/nowhere", "data.root"]),
        ('data.train=["tiny.py"]', ["tiny.py", "cannot be read as Parquet"]),
        (
            'data.labels=["label","label2"]',
            ["DeepFM fails", "of data.labels (label, label2). Take model.kind SharedBottom, MMoE", "with num_labels 2"],
        ),
        ('model.args={"hidden":4}', ["model.args", "DeepFM"]),
        ('model.args={"zzz":4}', ["DeepFM has no 'zzz'. It takes hidden", "to leave it out: --set 'model.args={}'"]),
        ("storage.device=100 B", ["storage.device is 100 B", "needed are", "raise storage.device"]),
        ("storage.read=1 KiB", ["storage.read is 1 KiB", "raise storage.read"]),
        ('storage={"memory":"900 TiB"}', ["storage.memory is 900 TiB, and this machine has", "lower it"]),
        ("storage.device=900 TiB", ["storage.device, host, read and map add up to", "this machine has"]),
        ("model.kind=math.pi", "model.kind 3.14159"),
        ("model.kind=builtins.dict", "model.kind dict cannot be made with model.args: it returns a dict"),
        ('model.args={"hidden":[-1]}', "model.kind DeepFM cannot be made with model.args: hidden[0] is -1"),
        ("storage.map=64 KiB", "storage.map is 64 KiB"),
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
