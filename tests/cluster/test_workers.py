"""Several workers, each a separate process: what one that dies, hangs or fails leaves behind, and who goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import closing
from functools import partial
from urllib.request import urlopen

import dask
import psutil
import pytest
from conftest import write_data
from support.runs.dask_crew import crew_driver
from support.runs.harness import make_driver

from pipeline.cluster import pool as pools
from pipeline.cluster.crew import WorkerLost, WorkerSpec
from pipeline.cluster.dask_crew import DaskCrew
from pipeline.cluster.local import local_client
from pipeline.cluster.pool import NoWorkers, WorkerPool
from pipeline.cluster.waits import CLOSE_SECONDS
from pipeline.data.source import Source
from pipeline.errors import PipelineError
from pipeline.settings.optimizer import Adam, DenseAdam, KStep, Optimizer
from pipeline.verify import verify
from pipeline.workflow import Workers

SIZES = {"device_rows": 75, "host_rows": 6, "ring_rows": 300, "chunk_rows": 2}
WORKERS = Workers(shards=4, silent_seconds=4.0, timeout_seconds=20.0, check_collectives=True)


@pytest.fixture(scope="module")
def pool():
    with closing(WorkerPool(WorkerSpec(2))) as pool:
        yield pool


@pytest.fixture(scope="module")
def three():
    with closing(WorkerPool(WorkerSpec(3))) as pool:
        yield pool


@pytest.fixture
def workflow(small_workflow):
    return small_workflow(epochs=2).with_settings(
        {"workers": WORKERS, "commit.every_blocks": 2, "commit.every_minutes": None}
    )


@pytest.fixture(scope="module")
def expected():
    """Fingerprints of undisturbed runs, by optimizer."""
    return {}


def with_kstep(workflow):
    merge = KStep(k=4, start=3, merged="xmv")
    optimizer = Optimizer(rows=Adam(lr=0.05), dense=DenseAdam(lr=0.01, eps=1e-4), merge=merge)
    return workflow.model_copy(update={"optimizer": optimizer})


def with_narrow_rows(workflow):
    rows = Adam(lr=0.05, semantics="dense", storage="bfloat16")
    return workflow.model_copy(update={"optimizer": Optimizer(rows=rows, dense=DenseAdam(lr=0.01))})


@pytest.mark.prove
def test_each_worker_runs_with_one_malloc_arena(pool):
    environments = pool.client.run(partial(os.environ.get, "MALLOC_ARENA_MAX"))
    assert set(environments.values()) == {"1"}


@pytest.mark.prove
def test_an_open_cluster_leaves_dasks_settings_alone(pool):
    """What other code of the process starts is not to inherit them, nor to find them once two clusters have closed."""
    with local_client() as client:
        assert client.cluster.scheduler.allowed_failures == pool.cluster.scheduler.allowed_failures == 0
        assert dask.config.get("distributed.scheduler.allowed-failures") == 3
        assert dask.config.get("distributed.nanny.pre-spawn-environ.MALLOC_ARENA_MAX", None) is None


def undisturbed(workflow, pool, tmp_path, expected):
    key = (str(workflow.optimizer), pool.world)
    if key not in expected:
        expected[key] = crew_driver(workflow, tmp_path / "undisturbed", pool, **SIZES).run()
    return expected[key]


def at_once(examples, action):
    """Do it once, when so many examples are through."""
    done = []

    def at_block(now):
        if now >= examples and not done:
            done.append(now)
            action()

    return at_block


@pytest.mark.prove
@pytest.mark.parametrize(
    "form", [lambda made: made, with_kstep, with_narrow_rows], ids=["synchronous", "k-step", "narrow"]
)
def test_tiers_and_blocks_never_change_what_two_workers_train(workflow, pool, tmp_path, expected, form):
    workflow = form(workflow)
    first = undisturbed(workflow, pool, tmp_path, expected)
    changes = {"schedule.block_batches": 3, "schedule.look_ahead": 1, "commit.every_blocks": None}
    other = workflow.with_settings(changes)
    second = crew_driver(other, tmp_path / "other", pool, device_rows=4096, host_rows=4096).run()
    assert second["fingerprint"] == first["fingerprint"]
    assert [e["auc"] for e in second["epochs"]] == [e["auc"] for e in first["epochs"]]
    assert first["tiers"]["disk"]["hits"] > 0, "no row came back from the disk: this shows too little"


@pytest.mark.prove
def test_each_worker_reports_its_traffic_by_kind(workflow, pool, tmp_path, expected):
    result = undisturbed(workflow, pool, tmp_path, expected)
    row_bytes = 4 * 4
    for worker in result["workers"]:
        assert {"rows", "gradients", "dense", "agreement"} <= worker.keys()
        assert worker["gradients"]["bytes"] % row_bytes == 0
    first, second = result["workers"]
    assert first["gradients"]["messages"] > 0
    assert first["dense"] == second["dense"]
    # What one has gradients for, the other sent it the rows of; and evaluation takes more rows.
    assert second["rows"]["bytes"] > first["gradients"]["bytes"] > 0
    assert first["rows"]["bytes"] > second["gradients"]["bytes"] > 0


@pytest.mark.prove
@pytest.mark.parametrize(
    ("number", "examples", "merge"), [(signal.SIGKILL, 40, False), (signal.SIGSTOP, 100, True)], ids=["kill", "stop"]
)
def test_a_run_recovers_from_a_lost_worker_to_the_same_bits(
    workflow, pool, tmp_path, expected, merge, number, examples
):
    workflow = with_kstep(workflow) if merge else workflow
    before = undisturbed(workflow, pool, tmp_path, expected)

    def lose():
        os.kill(driver.crew.machines[1].pid, number)

    driver = crew_driver(workflow, tmp_path / "run", pool, at_once(examples, lose), **SIZES)
    link = driver.crew.dashboard
    result = driver.run()
    assert driver.crew.dashboard == link
    assert [line.split(":")[0] for line in driver.progress.lines].count("dashboard") == 1
    with urlopen(link, timeout=60) as page:
        assert b"bokeh" in page.read()
    assert any("restart from the last commit" in line for line in driver.progress.lines), (
        "nobody was lost: this shows nothing"
    )
    assert result["fingerprint"] == before["fingerprint"]
    assert result["epochs"] == before["epochs"]
    assert verify(tmp_path / "run") == 0


@pytest.mark.prove
def test_links_that_change_with_lost_workers_are_printed(workflow, pool, tmp_path, monkeypatch):
    """As another program takes the port meanwhile."""
    driver, close, taken, said = crew_driver(workflow, tmp_path / "run", pool, **SIZES), WorkerPool.close, [], []
    port = pool.cluster.scheduler.http_server.port

    def close_and_take(pool):
        close(pool)
        taken.append(socket.create_server(("127.0.0.1", port)))

    monkeypatch.setattr(WorkerPool, "close", close_and_take)
    driver._recover(WorkerLost("worker 1 is gone"), said.append)
    taken[0].close()
    assert str(port) not in driver.crew.dashboard
    assert said[1:] == [f"dashboard: {driver.crew.dashboard}"]
    driver.crew.close()


@pytest.mark.prove
def test_a_pool_closes_without_waiting_for_a_new_worker(pool):
    os.kill(next(iter(pool.client.run(os.getpid).values())), signal.SIGKILL)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < CLOSE_SECONDS / 2
    pool._open()


@pytest.mark.prove
def test_a_failing_stage_ends_the_run_of_several_workers_at_once(workflow, pool, tmp_path):
    """Rows of one shard, and so of one worker, are damaged while the run goes on: it ends at once, and says where."""
    run_dir = tmp_path / "run"

    def damage():
        for file in (run_dir / "table.zarr" / "1" / "rows").glob("c.*"):
            file.write_bytes(bytes(file.stat().st_size))

    driver = crew_driver(workflow, run_dir, pool, at_once(60, damage), **SIZES)
    start = time.monotonic()
    with pytest.raises(PipelineError, match=r"(prefetch of block|table\.zarr)"):
        driver.run()
    assert time.monotonic() - start < WORKERS.timeout_seconds, "the others were waited for"
    pool.restart()


@pytest.mark.prove
def test_another_number_of_workers_resumes_the_run(workflow, pool, three, tmp_path):
    """Two, then three, then one, an epoch each: shards change hands, and no file of a commit is written again."""
    workflow = with_kstep(workflow)
    run_dir = tmp_path / "run"

    def epochs(number):
        return workflow.with_settings({"schedule.epochs": number})

    results = [crew_driver(epochs(1), run_dir, pool, **SIZES).run()]
    files = {file: file.read_bytes() for file in run_dir.glob("table.zarr/*/rows/c.*")}
    driver = crew_driver(epochs(2), run_dir, three, **SIZES)
    assert all(file.read_bytes() == content for file, content in files.items())
    assert any("workers: was" in warning for warning in driver.warnings)
    results.append(driver.run())
    results.append(make_driver(epochs(3), run_dir, **SIZES).run())
    assert results[0]["rows"] <= results[1]["rows"] == results[2]["rows"]
    assert [e["epoch"] for e in results[2]["epochs"] if e["split"] == "validation"] == [1, 2, 3]
    assert verify(run_dir) == 0


@pytest.mark.prove
def test_more_workers_than_shards_are_refused(workflow, pool, tmp_path):
    few = workflow.model_copy(update={"workers": Workers(shards=1)})
    with pytest.raises(ValueError, match="1 shard"):
        crew_driver(few, tmp_path / "run", pool, **SIZES)


@pytest.mark.prove
def test_a_worker_that_reads_other_data_is_refused(workflow, pool, tmp_path):
    other = write_data(tmp_path / "other", seed=1, num_train=90, num_keys=60)
    source = Source(workflow.data.model_copy(update={"root": other}), workflow.seed)
    with pytest.raises(
        ValueError, match=r"worker [01] on 127\.0\.0\.1 reads other data: data\.train: train-0\.parquet: "
    ):
        crew_driver(workflow, tmp_path / "run", pool, source=source, **SIZES)


@pytest.mark.prove
def test_a_run_recovers_from_a_worker_lost_while_all_open(workflow, pool, tmp_path, expected, monkeypatch):
    before, opens, open_crew = undisturbed(workflow, pool, tmp_path, expected), [], DaskCrew.open

    def lose(crew, kept):
        opens.append(kept)
        open_crew(crew, kept)
        if len(opens) == 1:
            os.kill(crew.machines[1].pid, signal.SIGKILL)

    monkeypatch.setattr(DaskCrew, "open", lose)
    assert crew_driver(workflow, tmp_path / "run", pool, **SIZES).run()["fingerprint"] == before["fingerprint"]
    assert len(opens) == 2


@pytest.mark.prove
def test_a_cluster_that_fails_to_start_once_is_started_again(monkeypatch):
    started, start = [], pools._start

    def fail_once(spec, mark):
        started.append(spec)
        if len(started) == 1:
            raise RuntimeError("Nanny failed to start.")
        return start(spec, mark)

    monkeypatch.setattr(pools, "_start", fail_once)
    with closing(WorkerPool(WorkerSpec(1))) as pool:
        assert len(pool.addresses) == 1


def test_a_cluster_that_never_starts_is_given_up_with_a_message(monkeypatch):
    def fail(spec, mark):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(pools, "_start", fail)
    with pytest.raises(NoWorkers, match=r"2 workers did not start: Nanny failed"):
        WorkerPool(WorkerSpec(2))


@pytest.mark.prove
def test_the_processes_of_workers_end_with_their_pool():
    before = set(psutil.Process().children(recursive=True))
    pool = WorkerPool(WorkerSpec(2))
    started = [p for p in set(psutil.Process().children(recursive=True)) - before if "spawn_main" in str(p.cmdline())]
    assert len(started) >= 2
    pool.close()
    assert not psutil.wait_procs(started, timeout=5)[1]
