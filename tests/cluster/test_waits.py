"""What ends a wait for Dask in this process: progress, or a message; and the threads of stages."""

import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from types import SimpleNamespace

import pytest
from distributed import LocalCluster, Status, wait
from distributed.client import AllExit
from support.depth import some
from support.oracle.reference import Reference
from support.runs.dask_crew import crew_driver
from support.runs.fake_dask import Pending, client_of
from support.runs.harness import run
from tornado.iostream import StreamClosedError

from pipeline.cluster import local, run_plugin, waits, watch
from pipeline.cluster import pool as pools
from pipeline.cluster.crew import WorkerLost, WorkerSpec
from pipeline.cluster.local import DaskExecutor, local_client
from pipeline.cluster.local_crew import THREADS
from pipeline.cluster.pool import NoWorkers, WorkerPool
from pipeline.cluster.run_plugin import RunPlugin, silence_lost_connections
from pipeline.cluster.threads import ThreadExecutor
from pipeline.cluster.waits import LOOK_SECONDS, NoAnswer, Silence, in_time
from pipeline.cluster.watch import Watch
from pipeline.errors import LostTouch, PipelineError
from pipeline.records import StageResult
from pipeline.verify import verify


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(local, "LOOK_SECONDS", 0.05)
    with local_client() as client:
        yield client


@pytest.fixture
def executor(client):
    executor = DaskExecutor(client, StageResult)
    yield executor
    executor.close()


def test_a_worker_that_was_not_heard_of_for_an_hour_goes_on(client):
    """As after a pause: the scheduler looks at its workers before they can report anything."""

    async def look(dask_scheduler):
        for worker in dask_scheduler.workers.values():
            worker.last_seen -= 3600
        if looks := dask_scheduler.periodic_callbacks.get("worker-ttl"):
            await looks.callback()

    client.run_on_scheduler(look)
    executor = DaskExecutor(client, StageResult)
    assert executor.result(executor.submit("read", 0, [])) == StageResult("read", 0)


@pytest.mark.timeout(20)
def test_a_message_that_waits_for_the_wall_clock_is_sent(client, executor):
    """As after a step of an hour backwards: each message goes out some ms after the one before, by that clock."""
    executor.result(executor.submit("read", 0, []))
    for sender in local.senders(client):
        sender.next_deadline = time.time() + 3600
    assert executor.result(executor.submit("read", 1, [])) == StageResult("read", 1)


@pytest.mark.timeout(20)
def test_a_worker_that_dask_dropped_ends_the_wait(client):
    """A stage that it is in the middle of is waited for."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def stage(name, number):
        begun.set()
        may_end.wait()
        ended.set()
        return StageResult(name, number)

    executor = DaskExecutor(client, stage)
    keys = [executor.submit("train", 0, [])]
    keys.append(executor.submit("read", 1, keys))

    async def lose(dask_scheduler):
        for address in list(dask_scheduler.workers):
            await dask_scheduler.remove_worker(address, stimulus_id="test")

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(executor.result, keys[0])
        assert begun.wait(5)
        threading.Timer(0.3, may_end.set).start()
        client.run_on_scheduler(lose)
        with pytest.raises(PipelineError, match=r"Dask (considers the worker in this process lost|has given up a s)"):
            waiting.result()
    executor.settle(keys)
    assert ended.is_set()
    with pytest.raises(PipelineError, match="Dask considers the worker in this process lost"):
        DaskExecutor(client, StageResult)


@pytest.mark.timeout(20)
def test_a_worker_that_runs_nothing_ends_the_wait_with_a_message(client, executor, monkeypatch):
    monkeypatch.setattr(local, "ANSWER_SECONDS", 0.3)
    (worker,) = client.cluster.workers.values()
    worker.status = Status.paused
    futures = [executor.submit("read", 0, [])]
    with pytest.raises(PipelineError, match="has tasks for this process, but has run none of them"):
        executor.result(futures[0])
    executor.settle(futures)


def test_a_stage_that_takes_long_is_waited_for(client, monkeypatch):
    monkeypatch.setattr(local, "ANSWER_SECONDS", 0.1)

    def slow(stage, number):
        time.sleep(0.3)
        return StageResult(stage, number)

    executor = DaskExecutor(client, slow)
    assert executor.result(executor.submit("read", 0, [])) == StageResult("read", 0)


def test_a_momentary_answer_of_dask_is_not_relied_on(client):
    """Its own refresh every millisecond, and an answer without workers in its place."""
    refresh = client._periodic_callbacks["scheduler-info"]
    refresh.stop()
    refresh.callback_time = 1

    async def nobody(n_workers=0):
        client._scheduler_identity = {"workers": {}}

    refresh.callback = nobody
    client.loop.add_callback(refresh.start)
    client._update_scheduler_info = nobody
    for _ in range(100):
        executor = DaskExecutor(client, StageResult)
        executor.close()
    executor = DaskExecutor(client, StageResult)
    assert executor.result(executor.submit("read", 0, [])) == StageResult("read", 0)


@pytest.mark.timeout(20)
def test_a_task_that_raised_a_timeout_is_not_waited_for(client):
    """As a file of a network disk does."""

    def late():
        raise TimeoutError(110, "Connection timed out")

    future = client.submit(late)
    wait([future])
    watch = Watch(SimpleNamespace(client=client, addresses=[]), 60.0)
    with pytest.raises(OSError, match="Connection timed out"):
        watch.results([future])


@pytest.mark.parametrize("logger", ["asyncio", "distributed.scheduler"])
@pytest.mark.parametrize(
    ("error", "shown"),
    [(AllExit(), False), (StreamClosedError(), False), (ValueError("mine"), True)],
    ids=["Dask's", "tornado's", "another"],
)
def test_only_lost_connections_are_left_out_of_the_log(error, shown, logger):
    """One that broke when a worker ended prints a traceback into a run that has recovered."""
    silence_lost_connections()
    record = logging.LogRecord(logger, logging.ERROR, "", 0, "was never retrieved", (), (type(error), error, None))
    assert bool(logging.getLogger(logger).filter(record)) == shown


def test_a_call_that_does_not_return_ends_with_a_message():
    never = threading.Event()
    with pytest.raises(NoAnswer, match="no answer from Dask in 0 s, waiting for nothing: check whether"):
        in_time("waiting for nothing", never.wait, 0.1)
    never.set()
    with pytest.raises(ZeroDivisionError):
        in_time("dividing", lambda: 1 / 0)
    assert in_time("answering", lambda: 42) == 42


def test_a_suspension_counts_for_no_limit_that_ends_a_run(monkeypatch):
    """Only for that after which workers are replaced."""
    now, client, silence = [100.0], client_of("tcp://a", status="paused"), Silence()
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    silence.look(client)
    now[0] += 3600
    assert silence.look(client) == {"tcp://a": 3600.0}
    assert (silence.idle_seconds, silence.paused) == (2 * LOOK_SECONDS, {"tcp://a": 2 * LOOK_SECONDS})


def test_workers_of_a_scheduler_that_does_not_answer_are_lost(monkeypatch):
    def silent(*args):
        raise NoAnswer("no answer from Dask in 30 s")

    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    client = SimpleNamespace(run_on_scheduler=silent, id="client")
    with pytest.raises(WorkerLost, match="no answer from Dask in 30 s"):
        Watch(SimpleNamespace(client=client, addresses=["tcp://a"]), 60.0).results([Pending()])


@pytest.mark.parametrize(
    ("addresses", "error", "kind", "said"),
    [
        ((), None, WorkerLost, "worker 0 .tcp://a. is gone"),
        (("tcp://a",), None, WorkerLost, "worker 0 .tcp://a. has not been heard from for 0 s"),
        (("tcp://a",), KeyError("rows"), PipelineError, "KeyError: 'rows'"),
    ],
)
def test_a_wait_ends_with_the_lost_worker_or_the_error(monkeypatch, addresses, error, kind, said):
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    pool = SimpleNamespace(client=client_of(*addresses), addresses=["tcp://a"])
    with pytest.raises(kind, match=said):
        Watch(pool, 9 if error else -1).results([Pending(error)])


def test_a_closed_connection_to_the_scheduler_is_reported():
    workers = {0: SimpleNamespace(address="inproc://a")}
    cluster = SimpleNamespace(scheduler=SimpleNamespace(workers={"inproc://a"}), workers=workers)
    with pytest.raises(PipelineError, match="the connection to Dask's scheduler in this process is closed"):
        local.InProcessCluster(SimpleNamespace(cluster=cluster, status="closed"))


def pool_of(client):
    pool = object.__new__(WorkerPool)
    pool.spec, pool.world, pool.cluster = WorkerSpec(2, "tcp://a"), 2, None
    pool.client, pool.addresses = client, ["tcp://b"]
    return pool


def test_workers_that_do_not_start_again_end_the_run(monkeypatch):
    def refuse(*args, **named):
        raise ValueError("no nanny")

    with pytest.raises(NoWorkers, match="workers of tcp://a cannot be started again: no nanny"):
        pool_of(client_of("tcp://b", restart_workers=refuse)).restart()
    monkeypatch.setattr(pools, "START_SECONDS", 0.01)
    with pytest.raises(NoWorkers, match="0 workers joined within 0 s, but 2 are needed"):
        pool_of(client_of("tcp://b", restart_workers=lambda *args, **named: None)).restart()


def stopped_watch(monkeypatch, status):
    """A watch of one worker that never runs a task, with all times a hundredth of the real ones."""
    for module, name in ((watch, "PAUSED_SECONDS"), (watch, "IDLE_SECONDS"), (watch, "NOTE_SECONDS")):
        monkeypatch.setattr(module, name, getattr(module, name) / 500)
    for module in (waits, watch):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    return Watch(SimpleNamespace(client=client_of("tcp://a", status=status), addresses=["tcp://a"]), 60.0)


@pytest.mark.parametrize(
    ("status", "noted", "said"),
    [
        (
            "paused",
            "; worker 0 .tcp://a. was paused by Dask",
            "worker 0 .tcp://a. was paused by Dask 0 s ago, .*larger",
        ),
        ("running", "$", "no worker ran a task of this run for 1 s; end whatever else"),
    ],
)
@pytest.mark.timeout(20)
def test_a_wait_for_a_worker_that_runs_nothing_ends(monkeypatch, capsys, status, noted, said):
    """And says before that what it waits for, once."""
    with pytest.raises(PipelineError, match=said) as error:
        stopped_watch(monkeypatch, status).results([Pending(), Pending()])
    assert not isinstance(error.value, WorkerLost)
    (line,) = capsys.readouterr().out.splitlines()
    assert re.search(f"^waiting for workers: train-3-0{noted}", line)


def test_workers_that_do_not_come_are_named_before_the_end(monkeypatch, capsys):
    monkeypatch.setattr(pools, "START_SECONDS", 0.3)
    monkeypatch.setattr(pools, "NOTE_SECONDS", 0.1)
    with pytest.raises(NoWorkers, match="0 workers joined within 0 s, but 2 are needed"):
        pool_of(client_of("tcp://b"))._wait(["tcp://b"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "waiting for workers of tcp://a: 2 are needed, and there are 0; the run ends after 0 s"


def test_a_long_call_says_what_it_waits_for(monkeypatch, capsys):
    monkeypatch.setattr(waits, "NOTE_SECONDS", 0.05)
    in_time("starting processes", lambda: time.sleep(0.2), 60.0)
    assert capsys.readouterr().out == "waiting for Dask, starting processes: 0 s of at most 60\n"


@pytest.mark.prove
def test_a_run_whose_worker_dask_pauses_ends_at_its_commit(small_workflow, tmp_path, monkeypatch):
    """A worker of a cluster of the user's own, in this process, where its memory can be said to be full."""
    monkeypatch.setattr(watch, "PAUSED_SECONDS", 2.0)
    workflow = small_workflow(epochs=1, block_batches=1).with_settings({"commit.every_blocks": 2})
    local = {"processes": False, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(1, threads_per_worker=12, memory_limit=0, **local) as cluster,
        closing(WorkerPool(WorkerSpec(1, cluster.scheduler_address))) as pool,
    ):
        (worker,) = cluster.workers.values()

        def pause(examples):
            if examples >= 40:
                cluster.loop.add_callback(setattr, worker, "status", Status.paused)

        driver = crew_driver(workflow, tmp_path / "run", pool, pause, device_rows=75, host_rows=6)
        with pytest.raises(PipelineError, match=r"worker 0 .* was paused by Dask . s ago, .*\ncommit [1-9]"):
            driver.run()
        cluster.loop.add_callback(setattr, worker, "status", Status.running)
    assert verify(tmp_path / "run") == 0


def test_a_worker_that_does_not_meet_the_others_says_its_number(small_workflow, monkeypatch):
    def miss(*args, **named):
        raise RuntimeError("nobody came in 5 s")

    monkeypatch.setattr(run_plugin, "Store", lambda *args, **named: None)
    monkeypatch.setattr(run_plugin, "Group", miss)
    request = SimpleNamespace(
        model=b"", workflow=small_workflow().model_dump_json(), store_host="127.0.0.1", store_port=1,
        store_folder="", timeout_seconds=1.0, rank=SimpleNamespace(number=1), check=False, token="run",
        hosts=("127.0.0.1",),
    )  # fmt: skip
    with pytest.raises(LostTouch, match="worker 1 could not connect to the others: nobody came in 5 s"):
        RunPlugin(ours=False).join(request, None)


def test_a_stage_runs_on_its_own_thread_after_what_it_waits_for():
    read, order = Event(), []

    def call(stage, number):
        if stage == "train":
            assert read.wait(10)
        else:
            read.set()
        order.append(stage)
        return StageResult(stage, number)

    executor = ThreadExecutor(call)
    train = executor.submit("train", 0, [])
    write_back = executor.submit("write_back", 0, [train])
    executor.submit("read", 1, [])
    assert executor.result(write_back) == StageResult("write_back", 0)
    executor.close()
    assert order == ["read", "train", "write_back"]


def test_no_stage_runs_after_one_that_failed():
    called = []

    def call(stage, number):
        called.append(stage)
        raise OSError("the disk is gone")

    executor = ThreadExecutor(call)
    futures = [executor.submit("read", 0, [])]
    futures += [executor.submit("dedup", 0, futures), executor.submit("read", 1, futures)]
    executor.settle(futures)
    with pytest.raises(OSError, match="the disk is gone"):
        executor.result(futures[1])
    executor.close()
    assert called == ["read"]


@pytest.mark.parametrize(("look_ahead", "block_batches"), some([(1, 1), (4, 3)], (4, 3), several=True))
def test_threads_train_the_bits_of_the_plain_trainer(small_workflow, look_ahead, block_batches):
    workflow = small_workflow(block_batches=block_batches, look_ahead=look_ahead)
    result = run(workflow, THREADS, device_rows=130, host_rows=24, chunk_rows=4)
    assert result["tiers"]["disk"]["rows_in"] > 100
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
