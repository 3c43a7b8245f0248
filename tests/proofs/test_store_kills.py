"""Runs with their data in a store, on one worker and on two, that are killed while they read it."""

import shutil
import signal
import time

import pytest
from support.runs.slow_runs import Job, until, whole
from support.stores.faulty_proxy import proxying
from support.stores.s3_server import CACHE_SECONDS, environment, serving_s3

FROM_STORE = ("--set", "data.root=s3://b/data")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("kills"), silent_seconds=8.0, timeout_seconds=30.0)


@pytest.fixture(scope="module")
def proxy(job):
    """A proxy in front of a store that has the data of the job."""
    with serving_s3() as (folder, port), proxying(port) as proxy:
        shutil.copytree(job.folder / "data", folder / "data")
        time.sleep(3 * CACHE_SECONDS)
        yield proxy


@pytest.mark.prove(every=True)
@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one worker", "two workers"])
def test_a_run_from_a_store_that_is_killed_has_the_bits_of_files(job, proxy, tmp_path, workers):
    expected, run_dir, killed = job.undisturbed(*workers), tmp_path / "run", []

    def start():
        return job.start(run_dir, *workers, *FROM_STORE, slow=0.0, env=environment(proxy.port))

    for commit in (1, 4):
        with start() as run:

            def kill(number, method, path, run=run, commit=commit):
                if method == "GET" and (run_dir / "commits" / f"{commit:06}.json").exists() and not run.ended():
                    run.process.send_signal(signal.SIGKILL)
                    killed.append(path)
                    return "cut"
                return None

            proxy.fault = kill
            until("it was not killed", run.ended, run)
            proxy.fault = lambda number, method, path: None
            assert run.process.returncode == -signal.SIGKILL, run.said[-3000:]
    with start() as run:
        assert run.fingerprint() == expected
    assert all(path.startswith("/b/data/") for path in killed)
    whole(run_dir)
