"""Run directories and a servable that an earlier commit wrote: they open, resume, are scored, exported and reported.
Those of other formats are refused."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.runs import kept_runs
from support.runs.studies import run_here, tune

import pipeline
from pipeline.commits.manifest import SEAL as RUN_SEAL
from pipeline.driver.resume import environment
from pipeline.monitor.page.page import main as report
from pipeline.run import main as run
from pipeline.serving import dense_files
from pipeline.serving.export import main as export
from pipeline.serving.score import main as score
from pipeline.serving.servable import SEAL as SERVABLE_SEAL
from pipeline.serving.servable import SERVABLE_MANIFEST
from pipeline.storage.files import Damaged
from pipeline.verify import main as verify

ARCHIVE = Path(kept_runs.__file__).with_name("kept_runs.tar.xz")
RESUMED = {
    "plain": ["--serial", "--set", "schedule.epochs=3"],
    "progressive": ["--serial"],
    "spans": ["--serial", "--extend", "data/later"],
    "workers": ["--serial"],
    "own": ["--serial"],
}
"""Arguments with which each run continues. The run of two workers continues with one, which takes less time."""
FINISHED = ("plain", "spans")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The archive, unpacked in the current folder. Returns the environment and fingerprints of the uninterrupted
    runs."""
    with tarfile.open(ARCHIVE) as file:
        file.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    # Tracing the model takes seconds.
    monkeypatch.setattr(dense_files, "exported", kept_runs.without_onnx)
    return json.loads(Path("expected.json").read_bytes())


def fingerprint_of(run_dir):
    return json.loads((run_dir / "result.json").read_bytes())["fingerprint"]


def check_uses(run_dir, file, data="data/test.parquet"):
    """Open, score, export and report the commits that are in a run directory; all scores must agree."""
    own = ["--workflow", file] if file == "own.py" else []
    table = pq.read_table(data)
    with pipeline.open_run(run_dir, "last", workflow=file) as opened:
        logits = opened.predict(table)["click.logit"].to_numpy()
        assert opened.rows("user", range(40))["known"].to_pylist().count(True) > 10
    assert score([str(run_dir), data, "--out", "scored", "--commit", "last", *own]) == 0
    np.testing.assert_array_equal(pq.read_table("scored")["click.logit"].to_numpy(), logits)
    assert export([str(run_dir), "--out", "exported", "--commit", "last", *own]) == 0
    with pipeline.open_servable("exported", backend="torch", workflow=file) as servable:
        np.testing.assert_allclose(servable.predict(table)["click.logit"].to_numpy(), logits, atol=1e-5)
    assert report([str(run_dir), "--out", "report.html"]) == 0
    assert len(Path("report.html").read_bytes()) > 10_000
    assert verify([str(run_dir)]) == 0


@pytest.mark.parametrize("name", RESUMED)
def test_a_kept_run_is_used_and_resumes_to_its_end(kept, name):
    run_dir, file = Path("runs", name), f"{name}.py"
    check_uses(run_dir, file, "data/later/2.parquet" if name == "spans" else "data/test.parquet")
    if name in FINISHED:
        before = fingerprint_of(run_dir)
        (run_dir / "result.json").unlink()
        assert run([file, "--serial"]) == 0
        assert fingerprint_of(run_dir) == before
    assert run([file, *RESUMED[name]]) == 0
    with pipeline.open_run(run_dir, "last", workflow=file) as opened:
        assert opened.finished
    # Processors, libraries and numbers of workers differ in their bits.
    if kept["environment"] == environment() and name not in ("plain", "workers"):
        assert fingerprint_of(run_dir) == kept["fingerprints"][name]
    assert verify([str(run_dir)]) == 0


@pytest.mark.prove
def test_a_kept_run_of_two_workers_resumes_with_two(kept):
    assert run(["workers.py", "--workers", "2"]) == 0
    if kept["environment"] == environment():
        assert fingerprint_of(Path("runs/workers")) == kept["fingerprints"]["workers"]


def test_a_kept_study_is_used_and_continues(kept, monkeypatch):
    pytest.importorskip("optuna")
    check_uses(Path("study/trials/000"), "study.py")
    run_here(monkeypatch)
    records = [Path(f"study/records/{n:03}/verdict.json") for n in range(kept_runs.TRIALS + 1)]
    before = [path.read_bytes() for path in records[:-1]]
    tune(Path("study.py"), Path("study"), "--trials", len(records))
    assert [path.read_bytes() for path in records[:-1]] == before
    if kept["environment"] == environment():
        fingerprints = [json.loads(path.read_bytes())["fingerprint"] for path in records]
        assert fingerprints == kept["fingerprints"]["study"]


def test_a_kept_servable_scores_as_its_run_does(kept):
    table = pq.read_table("data/test.parquet")
    with pipeline.open_run("runs/plain") as opened, pipeline.open_servable("servable", backend="torch") as servable:
        scores = [one.predict(table)["click.logit"].to_numpy() for one in (opened, servable)]
    np.testing.assert_allclose(*scores, atol=1e-5)
    assert verify(["servable"]) == 0


def with_format(path, seal, number):
    """Write a manifest as another version would: its own format, and the right checksum."""
    values = json.loads(seal.open(path.read_bytes()))
    path.write_bytes(seal.close(json.dumps(values | {"format": number}).encode()))


@pytest.mark.parametrize("number", [2, 6])
def test_a_run_of_another_format_is_refused_with_the_way_out(kept, capsys, number):
    for path in Path("runs/plain/commits").glob("*.json"):
        with_format(path, RUN_SEAL, number)
    before = {path: path.read_bytes() for path in Path("runs/plain").rglob("*") if path.is_file()}
    said = f"it has format {number}, and this version of the package reads format 3, 4, 5; go back to "
    with pytest.raises(Damaged, match=f"{said}.* --fresh"):
        pipeline.open_run("runs/plain")
    assert run(["plain.py", "--serial"]) != 0
    assert said in capsys.readouterr().err
    assert verify(["runs/plain", "--repair"]) == 1
    assert said in capsys.readouterr().out
    assert {path: path.read_bytes() for path in Path("runs/plain").rglob("*") if path.is_file()} == before


def test_a_servable_of_another_format_is_refused_with_the_way_out(kept, capsys):
    with_format(Path("servable") / SERVABLE_MANIFEST, SERVABLE_SEAL, 2)
    said = "it has format 2, and this version of the package reads format 1; export the servable again"
    with pytest.raises(Damaged, match=said):
        pipeline.open_servable("servable")
    assert verify(["servable"]) == 1
    assert said in capsys.readouterr().out
