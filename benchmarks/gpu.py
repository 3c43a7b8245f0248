"""`make bench-gpu`: everything that needs a GPU in one run: tests, kernels, the whole pipeline.

Without a GPU it prints what would run. Parts can be run separately; each writes its output to --out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from pipeline.device.gpu import choose

# Warnings from other versions of the libraries are shown but are not errors.
TESTS = ["-m", "pytest", "-m", "gpu", "-rs", "-q", "--timeout", "300", "-W", "default"]
PARTS = {
    "tests": [*TESTS, "tests/gpu", "--ignore", "tests/gpu/test_workers_gpu.py"],
    "workers": [*TESTS, "tests/gpu/test_workers_gpu.py"],
    "kernels": ["-m", "benchmarks.kernels.gpu"],
    "criteo": ["-m", "benchmarks.criteo_shape"],
    # Only small sizes: under the sanitizer a kernel takes a hundred times as long.
    "memcheck": [*TESTS, "tests/gpu/test_kernels_on_gpu.py", "-k", "small_sizes"],
    "racecheck": [*TESTS, "tests/gpu/test_kernels_on_gpu.py", "-k", "small_sizes"],
}
SANITIZED = ("memcheck", "racecheck")
"""Parts that run under the compute-sanitizer tool of the same name."""


def run_part(name: str, arguments: list[str], out: Path, seconds: float) -> tuple[str, str]:
    """Run one part. Returns its outcome in a word, and the last line of its output."""
    command = [sys.executable, *arguments]
    if name in SANITIZED:
        command = ["compute-sanitizer", "--tool", name, "--error-exitcode", "9", *command]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        status, text = ("ok" if done.returncode == 0 else f"exit {done.returncode}"), done.stdout
    except FileNotFoundError as error:
        status, text = "left out", str(error)
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        status, text = "too long", output.decode(errors="replace") if isinstance(output, bytes) else output
    (out / f"{name}.txt").write_text(text)
    lines = text.strip().splitlines()
    return status, lines[-1] if lines else ""


def print_line(name: str, status: str, seconds: float, last: str) -> None:
    print(f"{name:10} {status:10} {seconds:6.0f} s", flush=True)
    try:
        for ratio, value in json.loads(last).items():
            print(f"    {ratio:36} {value:10.3f}")
    except (ValueError, AttributeError):
        print(f"    {last[:150]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("data/benchmarks/gpu"), help="where outputs are left")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=420.0, help="after which a part is given up")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        print(f"on {choose('cuda').model}", flush=True)
    except ValueError as error:
        print(f"{error}\nnothing was run; on a machine with a GPU: {', '.join(args.parts)}")
        return 0
    worst = 0
    for name in args.parts:
        start = time.perf_counter()
        status, last = run_part(name, PARTS[name], args.out, args.seconds)
        print_line(name, status, time.perf_counter() - start, last)
        if status not in ("ok", "left out"):
            print("\n".join((args.out / f"{name}.txt").read_text().splitlines()[-40:]), flush=True)
        worst = max(worst, status not in ("ok", "left out"))
    return worst


if __name__ == "__main__":
    sys.exit(main())
