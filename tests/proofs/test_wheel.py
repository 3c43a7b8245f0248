"""The wheel alone is enough: in an environment without the clone it trains, exports and serves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = """
from pipeline import Workflow
from pipeline.api import Category, Data, Model, Number, Schedule, Synthetic

workflow = Workflow(
    name="tiny",
    data=Data(
        root="data", train=("train",), test=("test",), labels=("click",), numbers=(Number(name="i0"),),
        categories=(Category(name="c0"), Category(name="c1")),
        synthetic=Synthetic(train_examples=500, test_examples=100, keys_per_field=(50, 20), num_numbers=1),
    ),
    model=Model(kind="DeepFM", embedding_dim=4, args={"hidden": (8,)}),
    schedule=Schedule(batch_size=50),
)
"""


def run(*argv, **options):
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def pipeline(tmp_path):
    """The command in a new environment: the wheel, and the packages of this one."""
    source, venv = tmp_path / "source", tmp_path / "venv"
    shutil.copytree(ROOT / "pipeline", source / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", tmp_path, source)
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    run(*pip, "--python", venv, "install", "--no-deps", "--no-index", *tmp_path.glob("ctr_pipeline-*.whl"))
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return venv / "bin" / "pipeline"


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_the_wheel_trains_exports_and_serves(pipeline, tmp_path):
    pytest.importorskip("uvicorn", reason="the server's packages are not installed")
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": folder, "env": environment}
    assert run(pipeline, "--version", **options).startswith("pipeline 0.")
    (folder / "tiny.py").write_text(TINY)
    assert "test" in run(pipeline, "run", "tiny.py", "--serial", **options)
    run(pipeline, "export", "runs/tiny", "--out", "servable", **options)
    server = subprocess.Popen(
        [pipeline, "serve", "servable", "--port", "0"], stdout=subprocess.PIPE, text=True, **options
    )
    with server:
        url = server.stdout.readline().split()[-1]
        request = urllib.request.Request(
            f"{url}/v2/models/tiny/infer",
            (folder / "servable" / "request.json").read_bytes(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["outputs"]
        server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
    assert str(tmp_path / "venv") in run(
        pipeline.with_name("python"), "-c", "import pipeline; print(pipeline.__file__)", **options
    )
