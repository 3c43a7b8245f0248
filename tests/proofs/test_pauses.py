"""Processes of a run that are suspended for longer than anybody waits for them, and go on."""

import random
import signal
import time
from contextlib import suppress
from functools import cache

import psutil
import pytest
from support.runs.slow_runs import EPOCHS, Job

TTL = 8.0
"""Seconds without a heartbeat after which a worker counts as lost."""
WAIT = 10.0
"""Seconds: the limit of a collective."""
SEED = 11


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("pauses"), silent_seconds=TTL, timeout_seconds=WAIT)


@pytest.fixture(scope="module")
def expected(job):
    """Fingerprints of undisturbed runs, by their flags."""
    return cache(job.undisturbed)


def pause(processes, seconds):
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    random.shuffle(processes)
    for process in processes:
        # Whoever was silent for too long may be gone.
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


WHO = {
    "alone": lambda run: [run.process],
    "one of two": lambda run: [random.choice(run.workers())],
    "both": lambda run: run.workers(),
    "driver": lambda run: [run.process],
    "driver and both": lambda run: [run.process, *run.workers()],
}


def form(who, **mark):
    return pytest.param(who, id=who.replace(" ", "-"), marks=pytest.mark.prove(**mark))


@pytest.mark.parametrize(
    "who",
    [
        form("alone", weekly=True), form("one of two", every=True), form("both", weekly=True),
        form("driver", weekly=True), form("driver and both", every=True),
    ],
)  # fmt: skip
def test_a_suspended_run_goes_on_by_itself_to_the_same_bits(job, expected, tmp_path, who):
    random.seed(f"{SEED} {who}")
    flags = () if who == "alone" else ("--workers", "2")
    with job.start(tmp_path / "run", *flags, env={"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL}s"}) as run:
        run.says(f"epoch {random.randrange(1, EPOCHS - 1)} validation")
        assert not run.ended(), run.said[-3000:]
        time.sleep(random.random())
        pause(WHO[who](run), random.uniform(WAIT + 1, WAIT + 3))
        assert run.fingerprint() == expected(*flags)
        if who == "one of two":
            assert "all workers restart from the last commit" in run.said, "nobody was lost: this shows too little"
