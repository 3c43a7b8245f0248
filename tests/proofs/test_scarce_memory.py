"""Memory that is too little, as the system limits it, for whole processes."""

import resource
from pathlib import Path

import pytest
from distributed import LocalCluster
from support.runs.waiting_runs import gated, make_run, message_of, of_run, started
from test_stop import write_workflow

from pipeline.machine.limits import memory
from pipeline.messages.sizes import format_size, format_size_down

pytestmark = pytest.mark.prove


def test_too_little_memory_at_the_start_is_reported(tmp_path):
    """So that measuring the disk's speed fails."""
    argv = [write_workflow(make_run(tmp_path / "data"), tmp_path), "--run-dir", str(tmp_path / "run"), "--serial"]
    with gated("pipeline.driver.driver:measure", 1, argv) as process:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        num_bytes = pages * resource.getpagesize() + (16 << 20)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (num_bytes, num_bytes))
    said = message_of(process, 2)
    assert said.startswith("error: out of memory (")
    assert "for a scratch file of 64 MiB that measures the disk's speed): lower storage's caps" in said


def test_caps_beyond_the_machine_of_a_worker_are_refused(tmp_path):
    """Each alone would fit."""
    workflow = write_workflow(make_run(tmp_path / "data"), tmp_path)
    argv = [workflow, "--run-dir", str(tmp_path / "run"), "--workers", "2", "--set", "storage.disk=1 GiB", "--set"]
    caps = f"storage.host={format_size(int(0.6 * memory()))}"
    with LocalCluster(n_workers=2, threads_per_worker=4, memory_limit=0, dashboard_address="127.0.0.1:0") as cluster:
        said = message_of(started(of_run(*argv, caps, "--scheduler", cluster.scheduler_address)), 2)
        assert "storage's device, host, read and map of 2 workers there add up to" in said
        assert f", and its machine has {format_size_down(memory())}; lower them to " in said
        share = of_run(*argv, "storage.device=80 %", "--scheduler", cluster.scheduler_address)
        assert "how much memory of the workers' machines is free is not known here" in message_of(started(share), 2)
    assert not (tmp_path / "run" / "result.json").exists()
