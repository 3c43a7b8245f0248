"""Processes of a run on two workers that are killed while a commit is made."""

import random
import signal
import time

import pytest
from support.depth import deep
from support.runs.slow_runs import Job, until, whole

KILLS = deep(2, 3)
"""In each run directory."""
COMMIT_SECONDS = 0.1
SEED = 5
TWO = ("--workers", "2")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("kills"), silent_seconds=8.0, timeout_seconds=30.0)


@pytest.fixture(scope="module")
def expected(job):
    return job.undisturbed(*TWO)


def kill_within_a_commit(job, run, number, choose):
    """At a random instant of a commit that the run makes after so many. Whether it was still at it."""
    committing = job.folder / "committing"
    until("no such commit", lambda: (run.run_dir / "commits" / f"{number:06}.json").exists() or run.ended(), run)
    until("no commit", lambda: not committing.exists(), run)
    victim = choose()
    while not committing.exists() and not run.ended():
        time.sleep(0.0005)
    time.sleep(random.uniform(0, COMMIT_SECONDS))
    within = committing.exists()
    victim.send_signal(signal.SIGKILL)
    return within


@pytest.mark.prove
def test_a_worker_that_is_killed_within_a_commit_changes_nothing(job, expected, tmp_path):
    random.seed(SEED)
    within = 0
    with job.start(tmp_path / "run", *TWO, slow=0.0) as run:
        for number in range(1, 2 * KILLS, 2):
            within += kill_within_a_commit(job, run, number, lambda: random.choice(run.workers()))
        assert run.fingerprint() == expected
        assert within, "no commit was hit"
        assert run.said.count("restart from the last commit") >= within
    whole(tmp_path / "run")


@pytest.mark.prove
def test_a_driver_that_is_killed_within_a_commit_changes_nothing(job, expected, tmp_path):
    random.seed(SEED)
    within = 0
    for number in range(1, 2 * KILLS, 2):
        with job.start(tmp_path / "run", *TWO, slow=0.0) as run:
            within += kill_within_a_commit(job, run, number, lambda run=run: run.process)
            run.process.wait()
        (job.folder / "committing").unlink(missing_ok=True)
        whole(tmp_path / "run")
    assert within, "no commit was hit"
    with job.start(tmp_path / "run", *TWO, slow=0.0) as run:
        assert run.fingerprint() == expected
    whole(tmp_path / "run")
