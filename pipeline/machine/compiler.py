"""The model of the processor, and the C++ compiler for compiled dense models: the one that torch would choose, found
without importing torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path


def processor() -> str:
    """Model name of the processor, or its architecture if the system does not report the model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())


CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable for torch's cache of compiled code; torch reads it at each compilation."""
PROGRAM = "#include <Python.h>\n#include <omp.h>\n#include <vector>\nint threads() { return omp_get_max_threads(); }\n"
"""Program that needs the headers that all compiled models need: C++, OpenMP and Python."""
TRY_SECONDS = 60
"""Time limit for compiling this program, which takes about half a second."""


def compiler() -> str:
    """Command of the compiler: CXX from the environment, else g++."""
    return os.environ.get("CXX", "g++")


@cache
def compiler_version(command: str) -> str:
    """First line of the compiler's version; "none" if the compiler cannot be run."""
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=TRY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return (said.stdout.splitlines() or [command])[0]


def try_compiler(command: str) -> str:
    """Compile a small program. Returns the reason for a failure in one line; empty on success."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "try.cpp"), Path(folder, "try.so")
        source.write_text(PROGRAM)
        include = sysconfig.get_path("include")
        options = ["-fopenmp", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
        try:
            done = subprocess.run([command, *options], capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
        except FileNotFoundError:
            return f"there is no {command}"
        except subprocess.TimeoutExpired:
            return f"{command} does not end within {TRY_SECONDS} s"
        except OSError as error:
            return f"{command} cannot be run: {error.strerror}"
    wrong = [line for line in done.stderr.splitlines() if "error" in line] or [f"it ends with {done.returncode}"]
    return f"{command} fails: {wrong[0]}" if done.returncode else ""
