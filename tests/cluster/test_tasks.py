"""Tasks on threads of this process, and on another scheduler's workers."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import dask
import pytest
from distributed import Client, Future, LocalCluster, Status
from fake_dask import Pending, client_of

from pipeline.cluster import local
from pipeline.cluster import tasks as tasks_module
from pipeline.cluster.awake import in_time
from pipeline.cluster.tasks import Tasks, local_tasks, tasks_of
from pipeline.errors import PipelineError

TICK = 0.05


class Seen:
    """What tasks did in this process. Dask copies what is not found by its name in a module."""

    lock = threading.Lock()
    running = maximum = 0
    done: ClassVar[list[int]] = []


@pytest.fixture(autouse=True)
def nothing_seen():
    Seen.running = Seen.maximum = 0
    Seen.done.clear()


def work(item):
    with Seen.lock:
        Seen.running += 1
        Seen.maximum = max(Seen.maximum, Seen.running)
    time.sleep(0.01)
    with Seen.lock:
        Seen.running -= 1
        Seen.done.append(item)


def fail_at_1(item):
    if item == 1:
        raise ValueError("one is no good")
    time.sleep(0.2)
    Seen.done.append(item)


def test_each_item_is_done_once_and_at_most_one_at_a_time_in_a_thread():
    with local_tasks(3) as tasks:
        yielded = [item for some in tasks.each("work", work, [*range(40), 7], TICK) for item in some]
    assert sorted(Seen.done) == sorted(yielded) == sorted([*range(40), 7])
    assert Seen.maximum == 3


def test_a_failure_is_raised_after_tasks_beside_it_have_ended():
    with local_tasks(2) as tasks, pytest.raises(ValueError, match="one is no good"):
        for _ in tasks.each("work", fail_at_1, range(10), TICK):
            pass
    assert Seen.done == [0]


def test_a_wait_for_a_long_task_yields_at_every_tick():
    with local_tasks(1) as tasks:
        assert sum(1 for _ in tasks.each("work", time.sleep, [20 * TICK], TICK)) > 5


def test_no_task_begins_after_its_generator_is_closed():
    with local_tasks(1) as tasks:
        for _ in tasks.each("work", work, range(100), TICK):
            break
        before = list(Seen.done)
        time.sleep(3 * TICK)
        assert Seen.done == before
        assert len(before) < 100


def die_once(folder: Path) -> None:
    """The first worker that comes dies; whoever does it again is through."""
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "done").touch()


def test_the_task_of_a_worker_that_died_is_done_again(tmp_path):
    with (
        # Dask's settings are those of the process, and other tests of it have clusters of ours.
        dask.config.set({"distributed.scheduler.allowed-failures": 3}),
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        tasks_of(cluster.scheduler_address) as tasks,
    ):
        assert tasks.num_threads == 2
        assert [tmp_path] in list(tasks.each("die", die_once, [tmp_path], TICK))
    assert (tmp_path / "done").exists()


def test_a_scheduler_without_workers_is_refused():
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        pytest.raises(PipelineError, match="has no workers"),
        tasks_of(cluster.scheduler_address),
    ):
        pass


@pytest.mark.prove
@pytest.mark.timeout(30)
def test_tasks_of_a_cluster_whose_workers_left_end_with_a_message(monkeypatch):
    monkeypatch.setattr(tasks_module, "WORKERLESS_SECONDS", 0.3)
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": None, "distributed.scheduler.allowed-failures": 3}),
        LocalCluster(n_workers=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", threads_per_worker=1) as cluster,
        tasks_of(cluster.scheduler_address) as tasks,
    ):
        waiting = tasks.each("sleep", time.sleep, [60, 60], TICK)
        assert next(waiting) == []
        cluster.scale(0)
        with pytest.raises(PipelineError, match="the cluster had no workers for 0 s; start some"):
            list(waiting)


def test_a_task_has_one_callback_however_long_it_is_waited_for(monkeypatch):
    heard = []
    add = Future.add_done_callback
    monkeypatch.setattr(Future, "add_done_callback", lambda *args: (heard.append(args), add(*args))[1])
    with local_tasks(1) as tasks:
        looks = list(tasks.each("sleep", time.sleep, [0.5], 0.01))
    assert len(looks) > 10
    assert len(heard) == 1


@pytest.mark.timeout(20)
def test_tasks_that_nobody_runs_end_with_a_message(monkeypatch):
    monkeypatch.setattr(local, "ANSWER_SECONDS", 0.3)
    with local_tasks(1) as tasks:
        (worker,) = tasks._client.cluster.workers.values()
        worker.status = Status.paused
        with pytest.raises(PipelineError, match="has tasks for this process, and has run none of them"):
            list(tasks.each("work", work, [1], TICK))


@pytest.mark.prove
def test_a_scheduler_that_stands_still_ends_the_wait_with_a_message(monkeypatch):
    dask = [sys.executable, "-m", "dask"]
    address, quiet = "tcp://127.0.0.1:18793", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with ExitStack() as stack:

        def start(*command):
            process = subprocess.Popen([*dask, *command, "--host", "127.0.0.1", "--no-dashboard"], **quiet)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        scheduler = start("scheduler", "--port", "18793")
        start("worker", address, "--no-nanny")
        with Client(address, timeout=60) as client:
            client.wait_for_workers(1, timeout=60)
        with tasks_of(address) as tasks:
            waiting = tasks.each("sleep", time.sleep, [300], TICK)
            assert next(waiting) == []
            monkeypatch.setattr(in_time, "__defaults__", (4.0,))
            scheduler.send_signal(signal.SIGSTOP)
            with pytest.raises(PipelineError, match="no answer from Dask in 4 s"):
                list(waiting)


@pytest.mark.parametrize(
    ("addresses", "said"),
    [((), "the cluster had no workers for -1 s; start some"), (("tcp://a",), "the worker tcp://a was not heard of")],
)
def test_workers_that_are_gone_or_silent_end_the_tasks_with_a_message(monkeypatch, addresses, said):
    for name in ("WORKERLESS_SECONDS", "SILENT_SECONDS"):
        monkeypatch.setattr(tasks_module, name, -1.0)
    client = client_of(*addresses, submit=lambda *args, **named: Pending())
    with pytest.raises(PipelineError, match=said):
        list(Tasks(client, 1).each("work", work, [1], 0.01))


def test_a_task_that_dask_gives_up_with_its_worker_is_an_error():
    client = client_of("tcp://a", submit=lambda *args, **named: Pending(CancelledError("work-0")))
    with pytest.raises(PipelineError, match="a worker of the cluster was lost, and its task could not be done: work-0"):
        list(Tasks(client, 1).each("work", work, [1], 0.01))


@pytest.mark.parametrize(
    ("limit", "status", "said"),
    [
        (
            "WORKERLESS_SECONDS",
            "paused",
            "the worker tcp://a was paused by Dask 0 s ago, as its memory is near its limit",
        ),
        ("SILENT_SECONDS", "running", "no worker ran a task of this command for 0 s; end what else"),
    ],
)
def test_tasks_of_workers_that_run_none_end_with_a_message(monkeypatch, capsys, limit, status, said):
    """And a line before that."""
    monkeypatch.setattr(tasks_module, limit, 0.3)
    monkeypatch.setattr(tasks_module, "NOTE_SECONDS", 0.1)
    client = client_of("tcp://a", status=status, submit=lambda *args, **named: Pending())
    with pytest.raises(PipelineError, match=said):
        list(Tasks(client, 1).each("work", work, [1], 0.01))
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("waiting for workers: the worker tcp://a") for line in lines] == [True] * (
        status == "paused"
    )
