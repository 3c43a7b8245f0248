"""The most lines of each room of the package, of tests, benchmarks and docs, and the most commands and extras: what a
reader has to hold. A change that needs more raises its number here, where everybody sees it."""

import tomllib
from collections import Counter
from pathlib import Path

from pipeline.__main__ import GROUPS

PROJECT = Path(__file__).parent.parent
ROOMS = {
    "(root)": 2330, "cluster": 1948, "comm": 487, "commits": 1256, "data": 3489, "device": 368, "driver": 2300,
    "features": 1124, "files": 1709, "init": 2886, "kernels": 5328, "machine": 689, "messages": 234, "metrics": 655,
    "models": 1889, "monitor": 2909, "optim": 1053, "own_code": 111, "preflight": 1640, "prepare": 4633,
    "serving": 4747, "settings": 1428, "spans": 920, "stages": 1100, "storage": 2478, "training": 1442, "tune": 1258,
    "warm_start": 581, "worker": 1003,
}  # fmt: skip
"""The most lines of the Python files of each folder of the package; "(root)": of the files that are in none."""
OTHERS = {"pipeline": 51_995, "tests": 46_670, "benchmarks": 11_236, "docs": 2_282}
"""The most lines of Python files, of docs of Markdown files."""
COMMANDS, EXTRAS = 12, 8
DEVELOPERS = {"test", "dev", "bench"}
"""Extras that are not for users."""


def lines(files):
    return sum(len(path.read_bytes().splitlines()) for path in files)


def over(found, most):
    """Texts of what has more than its number, or has none."""
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
