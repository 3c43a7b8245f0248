"""Sockets of every kind of run, as the system lists them while it runs: nobody else reaches it."""

import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pytest
from conftest import make_table
from support.runs.slow_runs import ROOT, Job, listening


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("sockets"))


@pytest.mark.prove
@pytest.mark.parametrize(
    ("flags", "expected"),
    [(("--serial",), set()), ((), {"127.0.0.1"}), (("--workers", "2"), {"127.0.0.1"})],
    ids=["serial", "alone", "two"],
)
def test_a_run_listens_on_loopback_alone(job, tmp_path, flags, expected):
    found = set()
    with job.start(tmp_path / "run", *flags) as run:
        process = psutil.Process(run.process.pid)
        while not run.ended() and "epoch 3 validation" not in run.said:
            found |= listening(process)
            time.sleep(0.02)
        assert not run.ended(), run.said[-3000:]
    assert found == expected


@pytest.mark.prove
def test_a_run_on_a_scheduler_listens_only_on_its_host(job, tmp_path):
    """Of a cluster whose host is another address of loopback."""
    host, port, started = "127.0.0.2", 18_791, []
    dask = [sys.executable, "-m", "dask"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    worker = ("--nthreads", "12", "--memory-limit", "0", "--no-dashboard")
    try:
        started.append(
            subprocess.Popen(
                [*dask, "scheduler", "--host", host, "--port", str(port), "--dashboard-address", f"{host}:0"], **quiet
            )
        )
        for _ in range(2):
            started.append(
                subprocess.Popen(
                    [*dask, "worker", f"tcp://{host}:{port}", "--host", host, "--dashboard-address", f"{host}:0",
                     *worker], **quiet
                )
            )  # fmt: skip
        found = set()
        with job.start(tmp_path / "run", "--workers", "2", "--scheduler", f"tcp://{host}:{port}") as run:
            while not run.ended() and "epoch 3 validation" not in run.said:
                for process in (run.process, *started):
                    found |= listening(psutil.Process(process.pid))
                time.sleep(0.05)
            assert not run.ended(), run.said[-3000:]
        # What gloo is given is an interface, and it takes the first address of that.
        assert {host} <= found <= {host, "127.0.0.1"}
    finally:
        for process in started:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                one.kill()
            process.wait()


@pytest.mark.prove
def test_a_preparation_listens_nowhere(tmp_path):
    table = make_table(np.random.default_rng(0), 200_000, 1000).select(["click", "price", "item", "country"])
    pa.csv.write_csv(table, tmp_path / "log.csv")
    command = [
        sys.executable, "-m", "pipeline", "prepare", "csv", str(tmp_path / "log.csv"), "--out", str(tmp_path / "out"),
        "--schema", "click:label:int8", "price:number:float32", "item:category:int64", "country:category:string",
        "--piece-size", "128 KiB",
    ]  # fmt: skip
    found = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None:
            found |= listening(psutil.Process(process.pid))
            time.sleep(0.02)
        assert process.returncode == 0, process.stdout.read()
    assert not found
