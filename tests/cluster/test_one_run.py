"""One run at a time on the workers of a scheduler."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from distributed import LocalCluster
from support.runs.dask_crew import crew_driver
from support.runs.slow_runs import ROOT

from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.pool import ClusterInUse, WorkerPool, claim_workers
from pipeline.driver.session import open_session, plan_session

HOLDS = """
import sys
from distributed import Client
from pipeline.cluster.pool import claim_workers

claim_workers(Client(sys.argv[1]), sys.argv[1], "killed in /runs/killed")
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address():
    with LocalCluster(
        1,
        threads_per_worker=12,
        memory_limit=0,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster.scheduler_address


def pool_of(address, run):
    return closing(WorkerPool(WorkerSpec(1, address, run=run)))


def test_the_second_run_on_a_cluster_is_refused_at_once(address):
    with pool_of(address, "first in /runs/first") as first:
        plugin = first.client.run(lambda dask_worker: id(dask_worker.plugins["pipeline"]))
        begun = time.monotonic()
        with pytest.raises(ClusterInUse, match=rf"--scheduler {address}: its workers train first in /runs/first, proc"):
            pool_of(address, "second")
        assert time.monotonic() - begun < 5
        assert first.client.run(lambda dask_worker: id(dask_worker.plugins["pipeline"])) == plugin
        claim_workers(first.client, address, "first, once more")
    for run in ("third", "fourth"):
        with pool_of(address, run):
            pass


def test_of_runs_that_start_at_one_instant_one_has_the_cluster(address):
    def start(run):
        try:
            return WorkerPool(WorkerSpec(1, address, run=run))
        except ClusterInUse as error:
            return str(error)

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(start, "abcd"))
    (winner,) = (outcome for outcome in outcomes if isinstance(outcome, WorkerPool))
    winner.close()
    assert all(f"train {winner.spec.run}, " in said for said in outcomes if said is not winner)


@pytest.mark.prove
def test_a_killed_run_leaves_the_cluster_to_the_next(address):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDS, address], cwd=ROOT, stdin=pipe, stdout=pipe) as killed:
        assert killed.stdout.readline() == b"there\n"
        with pytest.raises(ClusterInUse, match="train killed in /runs/killed, process "):
            pool_of(address, "next")
        killed.send_signal(signal.SIGKILL)
    with pool_of(address, "next"):
        pass


@pytest.mark.prove
def test_a_refused_run_touches_no_file_and_harms_no_other(address, small_workflow, tmp_path):
    """Also with --fresh, which would move its earlier run aside."""
    refused, others = [], tmp_path / "others"
    (others / "run" / "commits").mkdir(parents=True)
    workflow = small_workflow(epochs=1)

    def try_another(examples):
        if not refused:
            session = plan_session(workflow, others / "run", False, None, address, print)
            with pytest.raises(ClusterInUse, match=f"its workers train small in {tmp_path}/first, process ") as error:
                open_session(session, fresh=True).__enter__()
            refused.append(error)

    fingerprints = set()
    for name, at_block in (("undisturbed", lambda examples: None), ("first", try_another)):
        with pool_of(address, f"small in {tmp_path / name}") as pool:
            driver = crew_driver(workflow, tmp_path / name, pool, at_block, device_rows=75, host_rows=6)
            fingerprints.add(driver.run()["fingerprint"])
            assert not [line for line in driver.progress.lines if "restart from the last commit" in line]
    assert refused
    assert len(fingerprints) == 1
    assert [path.name for path in others.rglob("*")] == ["run", "commits"]
