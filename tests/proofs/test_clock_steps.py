"""A wall clock that is set by an hour while a run goes on, forwards and backwards: that of its processes, by a library
that they load first. The machine's is left alone."""

import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest
from support.runs.slow_runs import Job

HOUR = 3600
SOURCE = Path(__file__).parents[1] / "support" / "faults" / "clock_steps.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler, cc, for the library that sets the clocks of a process")
    made = tmp_path_factory.mktemp("clocks") / "clock_steps.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", made, SOURCE, "-ldl"], check=True)
    return made


class Clock:
    """Clock of a run's processes."""

    def __init__(self, path: Path) -> None:
        self.path, self.hours = path, 0
        self.step(0)

    def step(self, hours: int) -> None:
        self.hours += hours
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("q", self.hours * HOUR * 10**9))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("steps"), silent_seconds=5.0, timeout_seconds=30.0)


@pytest.fixture(scope="module")
def expected(job):
    return {flags: job.undisturbed(*flags) for flags in ((), ("--workers", "2"))}


@pytest.mark.prove(weekly=True)
@pytest.mark.parametrize("flags", [(), ("--workers", "2")], ids=["alone", "two"])
def test_a_step_of_a_clock_never_changes_the_fingerprint(job, expected, library, tmp_path, flags):
    """An hour forwards, back, and back once more. A run of one process has its clock set many times in a row:
    what goes wrong depends on the millisecond."""
    clock = Clock(tmp_path / "steps")
    env = {"LD_PRELOAD": str(library), "CLOCK_STEPS": str(clock.path)}
    with job.start(tmp_path / "run", *flags, env=env) as run:
        for epoch, hours in ((1, 1), (2, -1), (4, -1)):
            run.says(f"epoch {epoch} validation")
            assert not run.ended(), run.said[-3000:]
            for n in range(1 if flags else 21):
                clock.step(hours * (-1) ** n)
                time.sleep(0.02)
        assert run.fingerprint() == expected[flags]
