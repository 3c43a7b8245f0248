"""The workflows that come with the project are valid, and run: in small, on real data where it is at hand."""

import json
import math
import re
import runpy
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.preflight.check_model import check_model
from pipeline.prepare.statistics import statistics_command
from pipeline.run import load, main
from pipeline.serving.export import curl_line
from pipeline.training.build import row_layout
from pipeline.workflow import Workflow

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
FILES = sorted({*(ROOT / "workflows").glob("*.py")} - {ROOT / "workflows/year_days.py"})

SMALL = [
    "schedule.epochs=1", "schedule.threads=1", 'model.args={"hidden":[8]}', "model.embedding_dim=4",
]  # fmt: skip


def run_small(name, root, run_dir, *settings):
    """The result of the workflow with these settings, run by Dask."""
    argv = [str(ROOT / "workflows" / name), "--run-dir", str(run_dir)]
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


def values_of_their_own(column, least):
    """Values with a key of their own: those seen often enough, without null."""
    return {value for value, count in Counter(column).items() if count >= least and value is not None}


def made_log(folder, columns, rows=3_000):
    """The three files of a log with random columns, and what is in the training file."""
    for name, part in (("train", 1.0), ("valid", 0.1), ("test", 0.1)):
        rng = np.random.default_rng(len(name))
        made = {column: make(rng, int(rows * part)) for column, make in columns.items()}
        pq.write_table(pa.table(made), folder / f"{name}.parquet")
    return pq.read_table(folder / "train.parquet").to_pydict()


def counted_values(name, root, capsys):
    """The workflow with its data in `root`, and the values that its statistics keep of each field."""
    workflow = load(ROOT / "workflows" / name).with_settings({"data.root": root})
    path = root / "workflow.json"
    path.write_text(workflow.model_dump_json())
    assert statistics_command([str(path)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    found = {}
    for rule in workflow.data.features:
        if rule.kind == "rare":
            rows = pq.read_table(root / rule.counts).to_pylist()
            found[rule.column] = {row["value"] for row in rows if row["count"] >= rule.at_least}
    assert said == f"{sum(map(len, found.values())):,} values of {len(found)} categories have keys of their own"
    return found


def test_the_criteo_workflow_follows_the_rules_of_criteo_x4(tmp_path, capsys):
    """Numbers by floor(ln(x)^2) above 2; a key for values seen ten times, of which null and 0 are none."""
    columns = {"label": lambda rng, n: rng.integers(0, 2, n)}
    for k in range(1, 14):
        columns[f"i{k}"] = lambda rng, n: pa.array(
            (rng.pareto(0.4, n) * 2).astype(np.int64) % 100_000 - 2, mask=rng.random(n) < 0.2
        )
    for k in range(1, 27):
        columns[f"c{k}"] = lambda rng, n: pa.array([f"{v:08x}" for v in rng.zipf(1.3, n)], mask=rng.random(n) < 0.2)
    log, found = made_log(tmp_path, columns), counted_values("criteo.py", tmp_path, capsys)
    assert len(found) == 39
    for k in range(1, 14):
        squared = [math.floor(math.log(x) ** 2) if x > 2 else x for x in log[f"i{k}"] if x]
        assert found[f"k{k}"] == values_of_their_own(squared, 10)
    for k in range(1, 27):
        assert found[f"c{k}"] == values_of_their_own(log[f"c{k}"], 10)
    result = run_small("criteo.py", tmp_path, tmp_path / "run", "schedule.batch_size=1000")
    # A shared key of each field holds null, 0 and what is rare.
    assert result["rows"] == sum(map(len, found.values())) + 39


def test_the_avazu_workflow_follows_the_rules_of_avazu_x4(tmp_path, capsys):
    """Hour, weekday and weekend of 14102100; a key for values seen twice."""
    columns = {"click": lambda rng, n: rng.integers(0, 2, n)}
    columns["hour"] = lambda rng, n: pa.array([f"1410{d}{h:02}" for d, h in zip(
        rng.integers(21, 31, n), rng.integers(0, 24, n), strict=True)]).cast(pa.int64())  # fmt: skip
    fields = [c.name for c in load(ROOT / "workflows/avazu.py").data.categories]
    for field in fields:
        if field not in ("hour_of_day", "weekday", "weekend"):
            columns[field] = lambda rng, n: [f"{v:x}" for v in rng.zipf(1.2, n)]
    log, found = made_log(tmp_path, columns, rows=600), counted_values("avazu.py", tmp_path, capsys)
    assert len(found) == len(fields) == 24
    times = [datetime.strptime(str(hour), "%y%m%d%H") for hour in log["hour"]]
    made = {
        "hour_of_day": [t.hour for t in times], "weekday": [t.weekday() for t in times],
        "weekend": [int(t.weekday() > 4) for t in times],
    }  # fmt: skip
    for field in fields:
        assert found[field] == values_of_their_own((log | made)[field], 2)


@pytest.mark.prove
def test_the_quickstart_uses_all_tiers(tmp_path, capsys):
    keys = [8000, 4000, 1000, 500, 100, 50, 20, 10, 5, 4]
    result = run_small(
        "quickstart.py", tmp_path / "data", tmp_path / "run",
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
    result = run_small("frappe.py", root, tmp_path / "run", *swapped)
    assert result["examples"] == 28860
    assert [epoch["split"] for epoch in result["epochs"]] == ["validation", "test"]
    assert 0.5 < result["auc"] < 1


@pytest.mark.prove
def test_the_criteo_workflow_trains_on_its_data(tmp_path):
    root = real_data("criteo_1tb_sample", "part-0.parquet", "part-6.parquet", "part-7.parquet")
    result = run_small("criteo.py:sample", root, tmp_path / "run", 'data.train=["part-0.parquet"]')
    assert result["examples"] == 10000
    assert [epoch["split"] for epoch in result["epochs"]] == ["validation", "test"]
    assert 0.4 < result["auc"] < 1


def test_days_of_the_stream_that_go_on_equal_one_run(tmp_path):
    path, days = ROOT / "workflows" / "stream.py", range(3)
    stream = runpy.run_path(str(path))
    at_once, later = tmp_path / "at once", tmp_path / "later"
    stream["write_days"](at_once, days, rows=256)
    for known in (1, 3):
        stream["write_days"](later, range(known), rows=256)
    names = sorted(file.name for file in at_once.iterdir())
    assert names == ["2026-01-01.parquet", "2026-01-02.parquet", "2026-01-03.parquet", "best.json"]
    assert [(later / name).read_bytes() for name in names] == [(at_once / name).read_bytes() for name in names]
    argv = [str(path), "--serial", "--set", f"data.root={at_once}", "--set", "schedule.threads=1", "--run-dir"]
    assert main([*argv, str(tmp_path / "one"), "--set", f"data.train={json.dumps(names[:3])}"]) == 0
    assert main([*argv, str(tmp_path / "days")]) == 0
    for name in names[1:3]:
        assert main([*argv, str(tmp_path / "days"), "--extend", str(at_once / name)]) == 0
    one, by_days = (json.loads((tmp_path / name / "result.json").read_bytes()) for name in ("one", "days"))
    assert (by_days["fingerprint"], by_days["epochs"]) == (one["fingerprint"], one["epochs"])
    assert [epoch["span"] for epoch in one["epochs"]] == [name.removesuffix(".parquet") for name in names[:3]]


@pytest.mark.parametrize("still", [(), ("--still",)], ids=["new keys", "still"])
def test_the_stream_prints_the_bounds_of_each_day(tmp_path, monkeypatch, capsys, still):
    monkeypatch.setattr(sys, "argv", ["stream.py", "--days", "2", "--folder", str(tmp_path), *still])
    runpy.run_path(str(ROOT / "workflows" / "stream.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    shape = r"2026-01-0\d  true: AUC (0\.\d+), NE (0\.\d+)  known: AUC (0\.\d+), NE (0\.\d+)"
    bounds = [[*map(float, re.fullmatch(shape, line).groups())] for line in lines]
    assert len(bounds) == 2
    for auc, ne, known_auc, known_ne in bounds:
        assert 0.5 < known_auc <= auc < 1
        assert ne <= known_ne < 1
        assert (known_auc < auc) == (not still)
    items = [pq.read_table(tmp_path / f"2026-01-0{day}.parquet")["item"].to_numpy().max() for day in (1, 2)]
    assert (items[0] < items[1]) == (not still)
