"""CONTRIBUTING.md: its four diffs apply to the tree as it is."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTIONS = (ROOT / "CONTRIBUTING.md").read_text().split("\n## ")[1:]
DIFFS = {section.splitlines()[0]: re.findall(r"^```diff\n(.*?)^```$", section, re.M | re.S) for section in SECTIONS}


def test_each_example_is_one_diff():
    assert [name[0] for name in DIFFS] == ["1", "2", "3", "4"]
    assert all(len(diffs) == 1 for diffs in DIFFS.values())


@pytest.mark.parametrize("name", DIFFS)
def test_an_example_applies_to_the_tree(name):
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone, which has .git")
    done = subprocess.run(
        ["git", "apply", "--check", "-"], cwd=ROOT, input=DIFFS[name][0], capture_output=True, text=True
    )
    assert done.returncode == 0, f"change the diff in CONTRIBUTING.md with the code: {done.stderr}"
