"""Tasks on threads of this process, and on another scheduler's workers."""

import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import ClassVar

import dask
import pytest
from distributed import Future, LocalCluster
from support.runs.fake_dask import Pending, client_of

from pipeline.cluster import tasks as tasks_module
from pipeline.cluster.local import client_here
from pipeline.cluster.tasks import Tasks, tasks_of
from pipeline.errors import PipelineError
from pipeline.machine.threads import TaskThreads

TICK = 0.05


@contextmanager
def on_dask(num_threads):
    with client_here(num_threads) as client:
        yield Tasks(client, num_threads)


RUNNERS = {"threads": lambda num_threads: nullcontext(TaskThreads(num_threads)), "dask": on_dask}
on_each = pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)


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


@on_each
def test_each_item_is_done_once_and_one_at_a_time_per_thread(runner):
    with runner(3) as tasks:
        yielded = [item for some in tasks.each("work", work, [*range(40), 7], TICK) for item in some]
    assert sorted(Seen.done) == sorted(yielded) == sorted([*range(40), 7])
    assert Seen.maximum == 3


@on_each
def test_a_failure_is_raised_after_running_tasks_have_ended(runner):
    with runner(2) as tasks, pytest.raises(ValueError, match="one is no good"):
        for _ in tasks.each("work", fail_at_1, range(10), TICK):
            pass
    assert 0 in Seen.done, "the task next to it has ended"


@on_each
def test_a_wait_for_a_long_task_yields_at_every_tick(runner):
    with runner(1) as tasks:
        assert sum(1 for _ in tasks.each("work", time.sleep, [20 * TICK], TICK)) > 5


@on_each
def test_no_task_begins_after_its_generator_is_closed(runner):
    with runner(1) as tasks:
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


def test_a_task_has_one_callback_however_long_it_is_waited_for(monkeypatch):
    heard = []
    add = Future.add_done_callback
    monkeypatch.setattr(Future, "add_done_callback", lambda *args: (heard.append(args), add(*args))[1])
    with on_dask(1) as tasks:
        looks = list(tasks.each("sleep", time.sleep, [0.5], 0.01))
    assert len(looks) > 10
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("addresses", "said"),
    [((), "the cluster had no workers for -1 s; start some"), (("tcp://a",), "the worker tcp://a was not heard of")],
)
def test_gone_or_silent_workers_end_the_tasks_with_a_message(monkeypatch, addresses, said):
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
    client = client_of("tcp://a", status=status, last_seen=float("nan"), submit=lambda *args, **named: Pending())
    with pytest.raises(PipelineError, match=said):
        list(Tasks(client, 1).each("work", work, [1], 0.01))
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("waiting for workers: the worker tcp://a") for line in lines] == [True] * (
        status == "paused"
    )
