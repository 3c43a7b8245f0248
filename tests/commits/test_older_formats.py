"""Run directories and servables of another version of this package: read if the format is the same, else refused."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow
from support.runs.harness import make_driver

import pipeline
from pipeline.commits.manifest import SEAL as RUN_SEAL
from pipeline.serving.servable import SEAL as SERVABLE_SEAL
from pipeline.serving.servable import SERVABLE_MANIFEST
from pipeline.storage.files import Damaged
from pipeline.verify import main as verify

pytestmark = pytest.mark.disk

SIZES = {"device_rows": 130, "host_rows": 24, "chunk_rows": 16}
STORED = Path(__file__).parent / "formats.tar.xz"
"""A run of `make_workflow(Path("data"), epochs=1)` with SIZES, in `run`, its data, and a servable of it without an ONNX
file, in `servable`; as commit 8f73aed wrote them: run format 3, servable format 1."""


@pytest.fixture
def stored(tmp_path, monkeypatch):
    with tarfile.open(STORED) as file:
        file.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_format(path, seal, number):
    """Write a manifest as another version would: its own format, and the right checksum."""
    values = json.loads(seal.open(path.read_bytes()))
    path.write_bytes(seal.close(json.dumps(values | {"format": number}).encode()))


def test_a_stored_run_opens_resumes_and_is_intact(stored, capsys):
    table = pq.read_table("data/test.parquet")
    with pipeline.open_run("run", "last") as run, pipeline.open_servable("servable", backend="torch") as servable:
        scores = [opened.predict(table)["click.logit"].to_numpy() for opened in (run, servable)]
        assert run.rows("item", range(60))["known"].to_pylist().count(True) > 30
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    assert verify(["run"]) == verify(["servable"]) == 0
    driver = make_driver(make_workflow(Path("data"), epochs=2), Path("run"), **SIZES)
    assert driver.committer.position.epoch == 1
    assert [epoch["epoch"] for epoch in driver.run()["epochs"]] == [1, 1, 2, 2]
    assert verify(["run"]) == 0


@pytest.mark.parametrize("number", [2, 5])
def test_a_run_of_another_format_is_refused_with_the_way_out(stored, capsys, number):
    for path in Path("run/commits").glob("*.json"):
        with_format(path, RUN_SEAL, number)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    said = f"it has format {number}, and this version of the package reads format 3 and 4; go back to .* --fresh"
    with pytest.raises(Damaged, match=said):
        pipeline.open_run("run")
    with pytest.raises(Damaged, match=said):
        make_driver(make_workflow(Path("data"), epochs=2), Path("run"), **SIZES)
    assert verify(["run", "--repair"]) == 1
    assert f"it has format {number}" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_servable_of_another_format_is_refused_with_the_way_out(stored, capsys):
    with_format(Path("servable") / SERVABLE_MANIFEST, SERVABLE_SEAL, 2)
    said = "it has format 2, and this version of the package reads format 1; export the servable again"
    with pytest.raises(Damaged, match=said):
        pipeline.open_servable("servable")
    assert verify(["servable"]) == 1
    assert said in capsys.readouterr().out
