"""Runs in separate processes that can wait at a given call until a test has acted on them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conftest import make_workflow, write_data
from test_stop import ROOT

from pipeline.workflow import Commit, Workflow

GATED = """
import sys
from importlib import import_module

command, place, number, *argv = sys.argv[1:]
module, _, name = place.partition(":")
*owner, name = name.split(".")
at = import_module(module)
for part in owner:
    at = getattr(at, part)
really, calls = getattr(at, name), []

def gated(*args, **named):
    calls.append(None)
    if len(calls) == int(number):
        print("here", flush=True)
        sys.stdin.readline()
    return really(*args, **named)

setattr(at, name, gated)
sys.exit(import_module(command).main(argv))
"""
"""Program of a command that waits for a line on stdin before call `number` of the function at `place`."""


def make_run(root: Path, **storage: object) -> Workflow:
    """Workflow of a hundred blocks with a commit every ten blocks; most rows are on disk."""
    write_data(root, num_train=5000, num_keys=4000)
    small = {"device": "320 KiB", "host": "260 KiB", "disk": "48 MiB", "map": "8 MiB"}
    workflow = make_workflow(root, batch_size=100, block_batches=1, shuffle_window=1000, storage=small | storage)
    return workflow.model_copy(update={"commit": Commit(every_blocks=10)})


def started(argv: list[str], before: list[str] | None = None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*(before or []), *argv], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def of_run(*argv: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.run", *argv]


@contextmanager
def gated(
    place: str, number: int, argv: list[str], before: list[str] | None = None, command: str = "pipeline.run"
) -> Iterator[subprocess.Popen[str]]:
    """Run (or another command) that waits at call `number` of `place`, and continues after the `with` block unless it
    is killed."""
    process = started([sys.executable, "-c", GATED, command, place, str(number), *argv], before)
    assert process.stdout
    assert process.stdin
    while (line := process.stdout.readline()) != "here\n":
        assert line, f"{place}: {process.communicate()[1]}"
    yield process
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()


def finished(argv: list[str], before: list[str] | None = None) -> str:
    """Output of a process, which must end with exit code 0."""
    process = started(argv, before)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{process.returncode}: {out}{err}"
    return out + err


def message_of(process: subprocess.Popen[str], *codes: int) -> str:
    """The single error message with which a run ended."""
    out, err = process.communicate(timeout=600)
    assert process.returncode in codes, f"{process.returncode}: {err}"
    assert "Traceback" not in out + err
    assert err.count("error: ") == 1, err
    return err[err.index("error: ") :]


def fingerprint_of(run_dir: Path) -> str:
    result = json.loads((run_dir / "result.json").read_text())
    assert result["tiers"]["disk"]["hits"] > 1000, "too little was read from the disk"
    return str(result["fingerprint"])
