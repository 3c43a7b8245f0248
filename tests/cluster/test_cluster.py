"""Dask under the pipeline: it may run a task again, a stage may raise, and no run may be harmed by either."""

import errno
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from conftest import make_workflow, write_data
from dask.utils import key_split
from support.depth import some
from support.runs.harness import THREE_TIERS, make_driver, run
from tornado import web

from pipeline.cluster.address import free_address
from pipeline.cluster.dashboard import dashboard_link
from pipeline.cluster.local import DaskExecutor, local_client, run_local_stage
from pipeline.errors import OutOfTurn, PipelineError
from pipeline.records import StageResult
from pipeline.schedule import BlockSchedule
from pipeline.stages import STAGES
from pipeline.worker import placement, stage_runner

ALONE = tuple(stage for stage in STAGES if stage not in ("unite", "scan", "upload"))
BAD_BLOCK = 7


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """20 blocks of one batch: 15 train, 3 validate, 2 test."""
    root = write_data(tmp_path_factory.mktemp("cluster"), num_train=90, num_keys=60)
    return make_workflow(root, block_batches=1, epochs=1)


@pytest.fixture(scope="module")
def expected(workflow):
    return run(workflow, **THREE_TIERS)["fingerprint"]


@pytest.fixture
def executor(client, workflow, tmp_path):
    """A started pipeline of which no stage has run yet."""
    driver = make_driver(workflow, tmp_path, client, **THREE_TIERS)
    driver.crew.worker.stages.start(list(driver.agenda.blocks(1)), look_ahead=2)
    executor = DaskExecutor(client, driver.crew.worker.stages.run)
    yield executor
    executor.close()
    driver.crew.worker.tiers.close()


class Calls:
    """Watches the stage functions that a worker calls: who was called, and who is inside one now."""

    def __init__(self, monkeypatch, fail_at=None, cause=None):
        self.made, self.threads, self.inside = [], {}, 0
        self._fail_at, self._cause, self._lock = fail_at, cause, threading.Lock()
        for stage in ALONE:
            module = placement if stage == "dedup" else stage_runner
            monkeypatch.setattr(module, stage, self._watched(stage, getattr(module, stage)))

    def _watched(self, stage, function):
        def call(first, *others):
            with self._lock:
                self.inside += 1
                self.made.append((stage, number_of(first)))
                self.threads.setdefault(stage, set()).add(threading.current_thread().name)
            try:
                if (stage, number_of(first)) == self._fail_at:
                    raise self._cause
                return function(first, *others)
            finally:
                with self._lock:
                    self.inside -= 1

        return call


def number_of(first):
    """The block that a stage is called for, by the stage's first argument."""
    first = first[0] if isinstance(first, list) else first
    return getattr(first, "block", first).number


def open_files():
    """What the descriptors of this process stand for; those that close meanwhile are left out."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(descriptor))
    return links


def test_a_task_that_dask_runs_again_is_refused(client, executor):
    executor.result(executor.submit("read", 0, []))
    again = client.submit(run_local_stage, "read", 0, executor.token, [], key="again", pure=False)
    with pytest.raises(PipelineError, match="read was called for block 0, but its next is 1: it has state"):
        again.result()
    assert executor.result(executor.submit("read", 1, [])).call is not None, "the refused call took the block's turn"


def test_a_task_of_a_run_that_is_over_is_refused(client, executor):
    executor.close()
    executor.close()
    with pytest.raises(OutOfTurn, match=f"read of block 0 was called for run {executor.token}, which is not open"):
        executor.result(executor.submit("read", 0, []))


@pytest.mark.parametrize("with_dask", [True, False], ids=["dask", "serial"])
@pytest.mark.parametrize("stage", some(ALONE, "plan", "train"))
def test_a_stage_that_raises_ends_all_work_and_leaves_no_result(
    client, workflow, expected, tmp_path, monkeypatch, stage, with_dask
):
    states = []
    settle = DaskExecutor.settle

    def settle_and_look(self, keys):
        settle(self, keys)
        states.extend(future.status for future in self._graph.futures.values())

    with monkeypatch.context() as patched:
        patched.setattr(DaskExecutor, "settle", settle_and_look)
        calls = Calls(patched, (stage, BAD_BLOCK), OSError("the cable was pulled"))
        driver = make_driver(workflow, tmp_path, client if with_dask else None, **THREE_TIERS)
        with pytest.raises(PipelineError) as caught:
            driver.run()
        assert calls.inside == 0
        assert isinstance(caught.value.__cause__.__cause__, OSError)
        said, kept = str(caught.value).splitlines()
        assert said == f"{stage} of block {BAD_BLOCK} failed: OSError: the cable was pulled"
        assert kept == "nothing is committed yet: once that is corrected, the same command starts over"
        num_calls = len(calls.made)
        time.sleep(0.05)
        assert len(calls.made) == num_calls, "a stage was called after the run had ended"
    assert (stage, BAD_BLOCK + 1) not in calls.made
    assert calls.made.count((stage, BAD_BLOCK)) == 1
    if with_dask:
        assert "error" in states
        assert set(states) <= {"finished", "error"}, "something was in flight when the run had ended"
        assert run(workflow, client, **THREE_TIERS)["fingerprint"] == expected
    assert not (tmp_path / "result.json").exists()


def test_a_failed_run_closes_its_threads_and_files(workflow, tmp_path, monkeypatch):
    """The serial executor has no threads, so all that are there afterwards belong to tiers or the model."""
    before = set(threading.enumerate())
    # The last block, when rows have come back from the disk.
    Calls(monkeypatch, ("train", 19), OSError("the cable was pulled"))
    driver = make_driver(workflow, tmp_path, **THREE_TIERS)
    with pytest.raises(PipelineError):
        driver.run()
    assert driver.history.tiers.report({"device": 0, "host": 0}, 0, 0, 0)["disk"]["hits"] > 0
    # Zarr has one thread for the whole process, from its first use on.
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"zarr_io"}
    assert not [path for path in open_files() if str(tmp_path) in path]


def test_every_socket_is_on_loopback(client):
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        pytest.skip("needs Linux's /proc/net/tcp to see the sockets of this process")
    own = set(open_files())
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    local = {row[1].split(":")[0] for row in rows if f"socket:[{row[9]}]" in own}
    assert local, "not even the dashboard listens"
    assert local <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    cluster = client.cluster
    addresses = [cluster.scheduler.address, *(worker.address for worker in cluster.workers.values())]
    assert all(address.startswith("inproc://") for address in addresses)
    assert dashboard_link(client).startswith("http://127.0.0.1:")


def test_the_dashboard_is_loaded_when_it_is_first_opened():
    with local_client() as client:
        applications = client.cluster.scheduler.http_application.applications
        assert [type(application) for application in applications] == [web.Application]
        for _ in range(2):
            with urlopen(dashboard_link(client), timeout=30) as page:
                assert b"bokeh" in page.read()
        assert "Bokeh" in type(applications[0]).__name__
        assert len(applications) == 1


@pytest.mark.parametrize("wanted", ["off", "127.0.0.1:{}"])
def test_the_dashboard_listens_where_it_is_told_or_is_off(wanted):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = []
        address = free_address(wanted.format(port), said.append)
        with local_client(address) as client:
            if wanted == "off":
                assert dashboard_link(client) is None
                return
            assert dashboard_link(client) == f"http://{address}/status"
            with urlopen(f"http://{address}/health", timeout=30) as page:
                assert page.status == 200
        assert said == [f"port {port} is taken: the dashboard listens on port {address.split(':')[1]}"]
        assert int(address.split(":")[1]) > port


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("on", r"expected a port such as 8787 .*, HOST:PORT, :PORT .*, or off"),
        ("127.0.0.1:66666", "expected a port"),
        ("192.0.2.1:8787", "this machine cannot listen there: .*, such as 127.0.0.1:8787"),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_refused(wanted, said):
    with pytest.raises(ValueError, match=f"--dashboard {wanted}: {said}"):
        free_address(wanted, print)


def test_ports_that_are_all_taken_are_refused(monkeypatch):
    def taken(address):
        raise OSError(errno.EADDRINUSE, "taken")

    monkeypatch.setattr(socket, "create_server", taken)
    with pytest.raises(ValueError, match="ports 8787 to 8806 are taken; name another, or 0 for any"):
        free_address("8787", print)


def test_the_dashboard_groups_tasks_by_stage(client):
    executor = DaskExecutor(client, StageResult)
    keys = {stage: executor.submit(stage, 12, []) for stage in STAGES}
    assert {stage: executor.result(key) for stage, key in keys.items()} == {s: StageResult(s, 12) for s in STAGES}
    executor.close()
    assert {stage: key_split(key) for stage, key in keys.items()} == {stage: stage for stage in STAGES}
    assert set(STAGES) <= set(client.cluster.scheduler.task_prefixes)
    assert len({key.rsplit("-", 1)[1] for key in keys.values()}) == 1


def test_each_stage_runs_in_its_own_thread_with_its_name(client, workflow, monkeypatch):
    calls = Calls(monkeypatch)
    for _ in range(2):
        run(workflow, client, **THREE_TIERS)
    assert {stage: [name.rpartition("_")[0] for name in calls.threads[stage]] for stage in ALONE} == {
        stage: [stage] for stage in ALONE
    }


@pytest.mark.prove
def test_the_number_of_futures_that_the_driver_keeps_is_bounded(client, workflow, monkeypatch):
    kept = []
    submit = BlockSchedule._submit

    def counting(self, stage, i):
        submit(self, stage, i)
        kept.append(len(self._futures))

    monkeypatch.setattr(BlockSchedule, "_submit", counting)
    longer = workflow.with_settings({"schedule.epochs": 3})
    run(longer, client, **THREE_TIERS)
    ahead = 2 * longer.schedule.look_ahead
    assert len(kept) > 300
    assert max(kept) <= 2 * ahead + len(ALONE) * (ahead + 3)
