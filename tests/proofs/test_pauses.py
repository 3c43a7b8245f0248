"""Processes of a run that stand still, for longer than anybody waits for them, and go on."""

import random
import signal
import time
from contextlib import suppress
from functools import cache

import psutil
import pytest
from support.runs.slow_runs import EPOCHS, Job

TTL = 5.0
"""Seconds: the least that Dask takes."""
PAUSES = 2
"""In each run."""
SEED = 11


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("pauses"), silent_seconds=TTL, timeout_seconds=30.0)


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


@pytest.mark.prove(weekly=True)
@pytest.mark.parametrize(
    ("who", "number"),
    [(who, n) for who, runs in zip(WHO, (2, 1, 1, 1, 1), strict=True) for n in range(runs)],
    ids=lambda value: str(value).replace(" ", "-"),
)
def test_a_pause_longer_than_the_ttl_changes_nothing(job, expected, tmp_path, who, number):
    random.seed(f"{SEED} {who} {number}")
    flags = () if who == "alone" else ("--workers", "2")
    with job.start(tmp_path / "run", *flags, env={"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL}s"}) as run:
        for epoch in sorted(random.sample(range(1, EPOCHS - 1), PAUSES)):
            run.says(f"epoch {epoch} validation")
            assert not run.ended(), run.said[-3000:]
            time.sleep(random.random())
            pause(WHO[who](run), random.uniform(TTL + 1, TTL + 3))
        assert run.fingerprint() == expected(*flags)
