"""The workflows that come with the project are valid, and run: in small, on real data where it is at hand."""

import json
import re
import runpy
from pathlib import Path

import pytest

from pipeline.preflight.check_model import check_model
from pipeline.run import load, main
from pipeline.serving.export import curl_line
from pipeline.training.build import row_layout
from pipeline.workflow import Workflow

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
FILES = sorted((ROOT / "workflows").glob("*.py"))

SMALL = [
    "schedule.epochs=1", "schedule.threads=1", 'model.args={"hidden":[8]}', "model.embedding_dim=4",
]  # fmt: skip


def run_small(name, root, run_dir, *settings):
    """The result of the workflow with these settings, run by Dask."""
    argv = [str(ROOT / "workflows" / f"{name}.py"), "--run-dir", str(run_dir)]
    for setting in (f"data.root={root}", *SMALL, *settings):
        argv += ["--set", setting]
    assert main(argv) == 0
    return json.loads((run_dir / "result.json").read_text())


def real_data(name, *files):
    missing = [file for file in files if not (DATA / name / file).is_file()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} in {DATA / name}")
    return DATA / name


def test_the_guide_sends_the_example_that_an_export_writes():
    for page, name in (("README.md", "quickstart"), ("docs/use.md", "clicks")):
        assert curl_line(Path("servables/monday"), name) in (ROOT / page).read_text().splitlines()


def test_the_workflow_in_the_readme_is_valid(tmp_path):
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "readme.py").write_text(text)
    workflow = load(tmp_path / "readme.py")
    check_model(workflow, row_layout(workflow))


def test_the_project_has_the_listed_workflows():
    assert {file.stem for file in FILES} >= {
        "quickstart",
        "criteo",
        "criteo_cowclip",
        "avazu",
        "avazu_cowclip",
        "frappe",
    }


@pytest.mark.parametrize(
    ("name", "dense_lr", "l2", "zeta"),
    [("criteo_cowclip", 90.5e-4, 2 * 128e-5, 1e-5), ("avazu_cowclip", 16e-4, 2 * 96e-5, 1e-4)],
)
def test_the_settings_at_128k_are_those_published(name, dense_lr, l2, zeta):
    """Zheng et al., the tables of their code; Keras's L2 counts twice here."""
    workflow = load(ROOT / "workflows" / f"{name}.py:at_128k")
    rows, dense, schedule = workflow.optimizer.rows, workflow.optimizer.dense, workflow.schedule
    assert (workflow.name, schedule.batch_size, schedule.block_batches) == (f"{name}_128k", 131_072, 1)
    assert (rows.lr, dense.lr, rows.l2) == (1e-4, pytest.approx(dense_lr, rel=1e-3), pytest.approx(l2))
    assert (rows.clip.zeta, rows.eps, rows.eps_place, dense.warm_up_epochs) == (zeta, 1e-7, "keras", 1.0)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_workflow_of_the_project_is_valid_and_survives_json(file, tmp_path, monkeypatch):
    """It may be loaded from anywhere, needs no data for that, and survives JSON."""
    monkeypatch.chdir(tmp_path)
    workflow = load(file)
    assert workflow.name == file.stem
    check_model(workflow, row_layout(workflow))
    text = workflow.model_dump_json()
    assert Workflow.model_validate_json(text).model_dump_json() == text
    assert "shared" not in text, "the data's folder is a setting"
    assert list(tmp_path.iterdir()) == []


FRAPPE = runpy.run_path(str(ROOT / "workflows" / "frappe.py"))


@pytest.mark.parametrize("model", FRAPPE["MODELS"])
def test_frappe_workflows_differ_in_model_and_optimizer_alone(model):
    workflow = FRAPPE["frappe"](model)
    check_model(workflow, row_layout(workflow))
    text = workflow.model_dump_json()
    assert Workflow.model_validate_json(text).model_dump_json() == text
    same = {"name", "model", "optimizer"}
    assert workflow.model_dump(exclude=same) == FRAPPE["workflow"].model_dump(exclude=same)
    if model == "DeepFM":
        assert workflow.with_settings({"name": "frappe"}) == FRAPPE["workflow"].with_settings({})


@pytest.mark.prove
def test_the_quickstart_uses_all_tiers(tmp_path, capsys):
    keys = [8000, 4000, 1000, 500, 100, 50, 20, 10, 5, 4]
    result = run_small(
        "quickstart", tmp_path / "data", tmp_path / "run",
        f"data.synthetic.keys_per_field={json.dumps(keys)}", "data.synthetic.train_examples=12000",
        "data.synthetic.validation_examples=1000", "data.synthetic.test_examples=1000",
        "storage.device=180 KiB", "storage.host=240 KiB", "storage.chunk_rows=1024",
        "schedule.batch_size=100", "schedule.block_batches=2",
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "dashboard: http://127.0.0.1:" in out + err
    assert result["examples"] == 12000
    assert all(tier["hits"] > 0 and tier["rows_in"] > 0 for tier in result["tiers"].values())
    slabs = result["tiers"]["device"]["capacity_rows"] + result["tiers"]["host"]["capacity_rows"]
    assert slabs < result["rows"] / 3
    assert [epoch["split"] for epoch in result["epochs"]] == ["validation", "test"]
    planted = json.loads((tmp_path / "data" / "synthetic.json").read_text())["planted_auc"]
    assert 0.4 < result["auc"] < planted + 0.05


@pytest.mark.prove
def test_the_frappe_workflow_trains_on_its_data(tmp_path):
    root = real_data("frappe_x1", "train.parquet", "valid.parquet", "test.parquet")
    swapped = 'data.train=["test.parquet"]', 'data.test=["train.parquet"]'
    result = run_small("frappe", root, tmp_path / "run", *swapped)
    assert result["examples"] == 28860
    assert [epoch["split"] for epoch in result["epochs"]] == ["validation", "test"]
    assert 0.5 < result["auc"] < 1


@pytest.mark.prove
def test_the_criteo_workflow_trains_on_its_data(tmp_path):
    root = real_data("criteo_1tb_sample", "part-0.parquet", "part-6.parquet", "part-7.parquet")
    result = run_small("criteo", root, tmp_path / "run", 'data.train=["part-0.parquet"]')
    assert result["examples"] == 10000
    assert [epoch["split"] for epoch in result["epochs"]] == ["validation", "test"]
    assert 0.4 < result["auc"] < 1
