"""Every program and command of the user guide runs, page after page, on the log that the first page makes."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text())
NOTHING_TO_RUN = {"data_types.md", "object_stores.md", "spans.md", "testing.md", "text.md", "troubleshooting.md"}
LONG = {"sizes.md", "tuning.md", "workers.md", "look.md", "tools.md", "results.md", "security.md"}
WEEKLY = pytest.mark.prove(weekly=True)
SHELL = 'pipeline() { "$PYTHON" -m pipeline "$@"; }; export -f pipeline; '


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guide")


def run_shell(example):
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["bash", "-euc", SHELL + str(example.parsed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{example.parsed}\n{done.stdout}\n{done.stderr}"


def test_the_guide_has_every_page():
    assert {path.name for path in DOCS.glob("*.md")} == {"README.md", *PAGES}


@pytest.mark.prove(every=True)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[WEEKLY] if page in LONG else []) for page in PAGES if page not in NOTHING_TO_RUN]
)
def test_what_a_page_says_runs(page, folder, monkeypatch):
    sybil = pytest.importorskip("sybil", reason="sybil is not installed")
    from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

    monkeypatch.chdir(folder)
    parsers = [PythonCodeBlockParser(), CodeBlockParser("sh", run_shell)]
    document = sybil.Sybil(parsers).parse(DOCS / page)
    # Classes of a page are found by name, as those of a notebook are.
    module = types.ModuleType(f"guide_{page.removesuffix('.md')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    document.namespace = vars(module)
    examples = list(document.examples())
    assert examples
    for example in examples:
        example.evaluate()
