"""Counts of what the tests do, for the README and docs/testing.md. Nothing is run.

`functions` and `forms`: test functions, without and with all their parameters (`make prove-all`, `make test-gpu` and
`make test-browser` together). `orders`: bad orders, missing edges and short buffers forced by tests/test_edges.py.
`properties`: functions that Hypothesis calls with generated examples.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.common import arguments, finish

ROOT = Path(__file__).parents[1]


def collected(path: str, **environment: str) -> int:
    """Number of forms of the tests in a file or folder, regardless of marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", path]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(re.findall(r"^(\d+) tests collected", done.stdout, re.MULTILINE)[0])


def main() -> None:
    args = arguments("tested", __doc__ or "")
    texts = [file.read_text() for file in (ROOT / "tests").rglob("*.py")]
    forms = 0 if args.quick else collected("tests") + collected("tests/simulated", NUMBA_ENABLE_CUDASIM="1")
    finish(args, {
        "functions": float(sum(len(re.findall(r"^ *def test_", text, re.MULTILINE)) for text in texts)),
        "forms": float(forms),
        "orders": float(collected("tests/test_edges.py")),
        "properties": float(sum(len(re.findall(r"^ *@given", text, re.MULTILINE)) for text in texts)),
    })  # fmt: skip


if __name__ == "__main__":
    main()
