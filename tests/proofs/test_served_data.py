"""Scores of real data: the run, its servable, both backends and any cut agree, and small precisions keep the AUC."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score
from support.oracle.models import MODELS
from test_workflows import DATA

import pipeline
from pipeline.device.device import RAM
from pipeline.driver.open import open_local
from pipeline.preflight.setup import set_up
from pipeline.serving.export import main as export_main
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Workflow

FRAPPE = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
SETS = {
    "frappe_x1": Data(
        root=DATA / "frappe_x1", train=("valid.parquet",), test=("test.parquet",), labels=("label",),
        categories=tuple(Category(name=name) for name in FRAPPE),
    ),
    "criteo_1tb_sample": Data(
        root=DATA / "criteo_1tb_sample", train=("part-0.parquet",), test=("part-7.parquet",), labels=("label",),
        numbers=tuple(Number(name=f"i{n}", log1p=True, shift=3.0) for n in range(1, 14)),
        categories=tuple(Category(name=f"c{n}") for n in range(1, 27)),
    ),
}  # fmt: skip


@pytest.fixture(params=SETS)
def data(request):
    found = SETS[request.param]
    if not Path(found.root).is_dir():
        pytest.skip(f"{found.root} is absent")
    return found


def train(data, name, run_dir):
    kind, args = MODELS[name]
    dim = 0 if name == "LR" else 8
    workflow = Workflow(
        name="real", data=data, model=Model(kind=kind, embedding_dim=dim, args=args),
        optimizer=Optimizer(rows=Adam(lr=2e-3), dense=DenseAdam(lr=1e-3)),
        storage=Storage(device="64 MiB", host="64 MiB", disk="2 GiB", map="64 MiB"),
        schedule=Schedule(batch_size=1024, block_batches=4, threads=2), seed=3, device="cpu",
    )  # fmt: skip
    setup, source = set_up(workflow, RAM, print)
    with open_local(setup, source, run_dir, serial=True) as driver:
        return driver.run()


def logits(scores):
    return scores.column("label.logit").to_numpy().astype(np.float64)


@pytest.mark.prove
@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_a_smaller_precision_keeps_the_auc_of_real_data(data, precision, tmp_path):
    result = train(data, "DeepFM", tmp_path / "run")
    (path,) = Path(data.root).glob(data.test[0])
    table = pq.read_table(path)
    arguments = ["--out", str(tmp_path / "out"), "--commit", "last", "--precision", precision]
    assert export_main([str(tmp_path / "run"), *arguments]) == 0
    with pipeline.open_servable(tmp_path / "out") as servable:
        found = logits(servable.predict(table))
    assert abs(roc_auc_score(table.column("label").to_numpy(), found) - result["auc"]) <= 0.0005
