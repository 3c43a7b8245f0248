"""Runs on the workers of a plain Dask cluster: in separate network namespaces, or on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.worker_kills.run import SILENT_SECONDS, Ended, Job, Run, verified

CUTS = (float("inf"), 2 * SILENT_SECONDS)
"""Seconds during which the link is down."""
SPACES = ("kills0", "kills1")
HOSTS = ("10.213.7.1", "10.213.7.2")
PORT = 18_786


def scheduler_kill(job: Job) -> Callable[[Path], str]:
    """Make a trial in which one of two workers, started before the run, is killed; its nanny starts another."""

    def trial(run_dir: Path) -> str:
        undisturbed = _two(job, run_dir)
        with cluster(("127.0.0.1", "127.0.0.1"), ((), ())) as nannies, _run(job, run_dir, "127.0.0.1") as run:
            run.says("epoch 1 validation")
            _kill_worker_of(nannies[1])
            ended = run.end()
        return ended.differs(undisturbed) or verified(run_dir)

    return trial


def cut(job: Job, seconds: float) -> Callable[[Path], str]:
    """Make a trial in which one worker's link goes down for `seconds`. If it is back in time, the run continues;
    otherwise the run ends with an error and resumes with workers on this machine."""

    def trial(run_dir: Path) -> str:
        undisturbed = _two(job, run_dir)
        inside = [("ip", "netns", "exec", space) for space in SPACES]
        with namespaces(), cluster(HOSTS, inside), _run(job, run_dir, HOSTS[0], inside[0]) as run:
            run.says("epoch 1 validation")
            _ip("-n", SPACES[1], "link", "set", "kills", "down")
            begun = time.perf_counter()
            run.says("not heard of")
            noticed = time.perf_counter() - begun
            if seconds < float("inf"):
                time.sleep(max(0.0, seconds - noticed))
                _ip("-n", SPACES[1], "link", "set", "kills", "up")
            ended = run.end()
        after = time.perf_counter() - begun
        print(
            f"  cut for {seconds:.0f} s: noticed after {noticed:.0f} s, rc {ended.code} after {after:.0f} s", flush=True
        )
        if seconds < float("inf"):
            return ended.differs(undisturbed) or verified(run_dir)
        print(f"  {ended.last_words}")
        return _stands(job, run_dir, ended, undisturbed)

    return trial


def _stands(job: Job, run_dir: Path, ended: Ended, undisturbed: Ended) -> str:
    """Check that a run that could not continue ended correctly, with everything committed. Returns what is wrong."""
    if ended.code != 1 or "error: " not in ended.said or "Traceback" in ended.said:
        return f"rc {ended.code}: {ended.last_words}"
    with job.start(run_dir, 2) as again:
        return verified(run_dir) or again.end().differs(undisturbed)


def _two(job: Job, run_dir: Path) -> Ended:
    """Run two workers undisturbed."""
    return Job(job.data, 2).undisturbed(run_dir.with_name(f"{run_dir.name}-undisturbed"))


def _run(job: Job, run_dir: Path, host: str, inside: Sequence[str] = ()) -> Run:
    return Run(job.data, run_dir, "--workers", "2", "--scheduler", f"tcp://{host}:{PORT}", inside=inside)


@contextmanager
def cluster(hosts: Sequence[str], inside: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a scheduler on the first host and a worker on each; yield the processes of the nannies."""
    address = f"tcp://{hosts[0]}:{PORT}"
    common = ("--nthreads", "12", "--memory-limit", "0", "--no-dashboard", "--death-timeout", "20")
    with ExitStack() as stack:

        def start(where: int, *command: str) -> subprocess.Popen[bytes]:
            line = [*inside[where], sys.executable, "-m", "dask", *command, "--host", hosts[where]]
            process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # Callbacks run in reverse order.
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        start(0, "scheduler", "--port", str(PORT), "--no-dashboard")
        yield [start(where, "worker", address, *common) for where in range(len(hosts))]


def _kill_worker_of(nanny: subprocess.Popen[bytes]) -> None:
    for process in psutil.Process(nanny.pid).children():
        if "spawn_main" in " ".join(process.cmdline()):
            process.kill()


@contextmanager
def namespaces() -> Iterator[None]:
    """Two network namespaces, connected by a pair of interfaces called `kills`."""
    with ExitStack() as stack:
        for space in SPACES:
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("link", "add", "kills", "netns", SPACES[0], "type", "veth", "peer", "name", "kills", "netns", SPACES[1])
        for space, host in zip(SPACES, HOSTS, strict=True):
            _ip("-n", space, "address", "add", f"{host}/24", "dev", "kills")
            _ip("-n", space, "link", "set", "kills", "up")
        yield


def no_namespaces() -> str:
    """Reason why network namespaces cannot be used here; empty if they can."""
    try:
        with namespaces():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces need root and `ip`: {error}"


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)
