"""Preparations in this process and in others, and their outputs."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from support.data import raw_lines as made

from pipeline.prepare.layout import STUB
from pipeline.prepare.main import main

ROOT = Path(__file__).parents[3]
SPLIT = ("--split", "ratio:validation=0.1,test=0.1,seed=3")
CASES = {
    "criteo": (made.criteo_lines, ()),
    "avazu": (made.avazu_lines, ()),
    "csv": (made.csv_lines, ("--schema", *made.CSV_COLUMNS)),
    "libsvm": (made.libsvm_lines, ("--numbers", *map(str, made.LIBSVM_NUMBERS))),
    "libffm": (
        made.libffm_lines,
        ("--fields", *map(str, made.LIBFFM_FIELDS), "--many", *map(str, made.LIBFFM_MANY), "--numbers",
         *map(str, made.LIBFFM_NUMBERS)),
    ),
}  # fmt: skip
"""Function that makes lines of each raw format, and the format's command-line options."""


def write_lines(path, format, count, seed=0):
    path.write_bytes(CASES[format][0](count, seed))
    return path


def command(format, source, out, *more):
    of_format = CASES[format][1] if format in CASES else ()
    return [format, str(source), "--out", str(out), *of_format, *map(str, more)]


def prepare(format, source, out, *more):
    """Run a preparation in this process, and return its exit code."""
    return main(command(format, source, out, *more))


def start(format, source, out, *more):
    """Start a preparation in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", "prepare", *command(format, source, out, *more)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process, out, pattern, count=1):
    """Wait until the output has `count` files that match the pattern, or the process has ended."""
    while len(list(out.glob(pattern))) < count and process.poll() is None:
        time.sleep(0.002)


def contents(out):
    """Contents of every file of an output, by name, without the workflow's name, which is that of the folder."""
    found = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    return {name: re.sub(rb'\n    name=".*",', b"", text) if name == STUB else text for name, text in found.items()}
