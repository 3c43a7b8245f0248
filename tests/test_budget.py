"""The most lines of each room of the package, of tests, benchmarks and docs, and the most commands and extras: what a
reader has to hold. A change that needs more raises its number here, where everybody sees it."""

import tomllib
from collections import Counter
from pathlib import Path

from pipeline.__main__ import GROUPS

PROJECT = Path(__file__).parent.parent
ROOMS = {
    "(root)": 2435, "arrivals": 231, "baselines": 382, "cluster": 1971, "comm": 767, "commits": 1191, "data": 2875,
    "device": 328, "doctor": 1865, "driver": 2162, "features": 897, "files": 1371, "init": 2388, "kernels": 5816,
    "machine": 1164, "messages": 239, "metrics": 859, "models": 1908, "monitor": 4623, "optim": 1083, "own_code": 369,
    "planner": 1440, "preflight": 1599, "prepare": 4337, "replay": 1313, "serving": 5186, "settings": 1329,
    "spans": 397, "stages": 1146, "storage": 2472, "training": 1536, "tune": 1254, "warm_start": 562, "worker": 1068,
}  # fmt: skip
"""The most lines of the Python files of each folder of the package; "(root)": of the files that are in none."""
OTHERS = {"pipeline": 58_563, "tests": 49_970, "benchmarks": 15_263, "docs": 2_170}
"""The most lines of Python files, of docs of Markdown files."""
COMMANDS, EXTRAS = 20, 10
DEVELOPERS = {"test", "dev", "bench"}
"""Extras that are not for users."""


def lines(files):
    return sum(len(path.read_bytes().splitlines()) for path in files)


def over(found, most):
    """What has more than its number, or has none."""
    return {name: f"{n:,} of at most {most.get(name, 0):,}" for name, n in found.items() if n > most.get(name, 0)}


def test_every_room_keeps_within_its_lines():
    package, found = PROJECT / "pipeline", Counter()
    for path in package.rglob("*.py"):
        folder, *inside = path.relative_to(package).parts
        found[folder if inside else "(root)"] += lines([path])
    assert not over(found, ROOMS)
    assert not ROOMS.keys() - found.keys(), "these rooms are gone: take them from the table"


def test_code_tests_benchmarks_and_docs_keep_within_lines():
    found = {name: lines((PROJECT / name).rglob("*.md" if name == "docs" else "*.py")) for name in OTHERS}
    assert not over(found, OTHERS)


def test_commands_and_extras_stay_few():
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sum(map(len, GROUPS.values())) <= COMMANDS
    assert len(extras.keys() - DEVELOPERS) <= EXTRAS
