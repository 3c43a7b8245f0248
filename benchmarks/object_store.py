"""The quickstart from a distant object store: how long does training wait for `read`?

    python -m benchmarks.object_store [--repeats 3] [--latency 0.02] [--megabytes 50]

An S3 server on this machine serves the data, behind a proxy that delays each request and limits the total bandwidth.
Runs from local files and from the store take turns.

Expected: the same fingerprint; in runs from the store, training waits for `read` longer than in runs from files by at
most 5 % of the run's seconds. Server and proxy share the cores with the run, so the CPU seconds of the run are also
shown.

The last line is JSON: `read_share`, the seconds that training waited for `read` in a run from the store, minus those in
the preceding run from files, as a share of the latter's seconds; `processor` and `seconds`, ratios of the CPU seconds
of the runs' processes and of their wall seconds; `requests`, `megabytes` and `in_flight`, the number of requests, the
megabytes of their responses, and the maximum number of concurrent requests, of a run from the store.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import arguments, finish, machine
from pipeline.data.synthetic import ensure
from pipeline.monitor.live.lines import Ended, read_live
from pipeline.workflow import load

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "workflows" / "quickstart.py"
WORKFLOW = """
from pathlib import Path
from pipeline.workflow import load
plain = load(Path({quickstart!r}))
data = plain.data.model_copy(update=dict(root=Path({root!r}), synthetic=None))
workflow = plain.model_copy(update=dict(data=data))
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--latency", type=float, default=0.02, help="seconds before each request is passed on")
    parser.add_argument("--megabytes", type=float, default=50.0, help="a second, of all requests together")


def run(root: str, folder: Path, environment: dict[str, str]) -> tuple[str, Ended, float]:
    """Train the quickstart with the data at `root`. Returns its fingerprint, the last line of live.jsonl, and the CPU
    seconds of its process."""
    file, run_dir = folder / "workflow_store.py", folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    file.write_text(WORKFLOW.format(quickstart=str(QUICKSTART), root=root))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "pipeline", "run", str(file), "--out", str(run_dir)],
        env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = next(line for line in read_live(run_dir) if isinstance(line, Ended))
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads((run_dir / "result.json").read_text())["fingerprint"], ended, took


@contextmanager
def far_away(port: int, args: argparse.Namespace, figures: list[float]) -> Iterator[int]:
    """Port of a proxy in front of a server; then its figures: requests, megabytes, maximum concurrent requests."""
    command = [sys.executable, "-m", "support.stores.faulty_proxy", str(port), str(args.latency)]
    proxy = subprocess.Popen(
        [*command, str(args.megabytes * 1e6)], env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert proxy.stdout
    yield int(proxy.stdout.readline())
    proxy.terminate()
    requests, answered, at_a_time = map(int, proxy.stdout.readline().split())
    figures[:] = [requests, answered / 1e6, at_a_time]
    proxy.wait()


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.stores.s3_server import environment, serving_s3

    args = arguments("object_store", "The quickstart from an object store that is far away.", options)
    print(machine(), flush=True)
    planted, folder, figures = load(QUICKSTART).data, (args.data / "object_store").resolve(), [0.0]
    if args.quick:
        fewer = dict.fromkeys(("train_examples", "validation_examples", "test_examples"), 20_000)
        planted = planted.model_copy(update={"synthetic": planted.synthetic.model_copy(update=fewer)})
    planted = planted.model_copy(update={"root": folder / f"data{'_quick' if args.quick else ''}"})
    ensure(planted)
    shares, processor, seconds = [], [], []
    with serving_s3() as (bucket, port):
        shutil.copytree(planted.root, bucket / "log")
        for _ in range(1 if args.quick else args.repeats):
            expected, here, here_took = run(str(planted.root), folder, dict(os.environ))
            with far_away(port, args, figures) as proxy_port:
                found, there, there_took = run("s3://b/log", folder, os.environ | environment(proxy_port))
            assert found == expected, "the bits of a run from the store differ"
            read = [one.waits.get("read", 0.0) for one in (here, there)]
            print(
                f"files {here.seconds:6.1f} s, {read[0]:5.2f} s for read, {here_took:6.1f} CPU s;   store "
                f"{there.seconds:6.1f} s, {read[1]:5.2f} s for read, {there_took:6.1f} CPU s, "
                "{:.0f} requests, {:.0f} MB, at most {:.0f} at a time".format(*figures), flush=True,
            )  # fmt: skip
            shares.append((read[1] - read[0]) / here.seconds)
            processor.append(there_took / here_took)
            seconds.append(there.seconds / here.seconds)
    of_runs = {"read_share": shares, "processor": processor, "seconds": seconds}
    finish(
        args, {name: statistics.median(each) for name, each in of_runs.items()}
        | dict(zip(("requests", "megabytes", "in_flight"), map(float, figures), strict=True)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
