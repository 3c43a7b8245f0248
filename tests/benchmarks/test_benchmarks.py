"""Every benchmark runs, in its quick form, and ends with figures that can be read."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.results import COMPARED

ROOT = Path(__file__).parents[2]
FILES = [file for file in sorted((ROOT / "benchmarks").rglob("*.py")) if "= arguments(" in file.read_text()]
NAMES = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for file in FILES]
"""Modules that read the command line that all benchmarks share."""
SHORT = {f"benchmarks.{name}" for name in ("criteo_shape", "narrow_rows", "policies")}
EVERY, WEEKLY = pytest.mark.prove(every=True), pytest.mark.prove(weekly=True)


def test_every_folder_of_benchmarks_has_one_that_is_run():
    folders = {path.parent.name for path in (ROOT / "benchmarks").rglob("__init__.py")} - {"benchmarks"}
    assert {name.split(".")[1] for name in NAMES} >= folders


@pytest.mark.parametrize("name", [pytest.param(name, marks=EVERY if name in SHORT else WEEKLY) for name in NAMES])
def test_a_benchmark_runs_and_ends_with_finite_figures(tmp_path, name):
    before = set(ROOT.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", name, "--quick", "--data", str(tmp_path / "data"), "--json", "figures.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures or name.endswith("gpu")
    assert all(isinstance(value, float) and math.isfinite(value) for value in figures.values())
    if name == "benchmarks.end_to_end":
        names = {name for _, *names in COMPARED for name in names if name and not name.startswith("e")}
        assert figures.keys() >= names, "the README's table needs them"
    assert json.loads((tmp_path / "figures.json").read_text())["values"] == figures
    assert set(tmp_path.iterdir()) <= {tmp_path / "data", tmp_path / "figures.json"}, "something was left behind"
    assert set(ROOT.iterdir()) <= before | {ROOT / ".benchmarks"}
