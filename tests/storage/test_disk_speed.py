"""What a read costs here: measured quickly, and nothing left behind."""

import errno
import fcntl
import os
import re
import resource
import time
from pathlib import Path

import pytest

from pipeline.storage import disk_speed
from pipeline.storage.disk_speed import DiskSpeed, measure

pytestmark = pytest.mark.disk

SMALL = 4 << 20


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """After any test here: neither a file nor, of one without a name, a descriptor."""
    yield
    assert os.listdir(tmp_path) == []
    descriptors = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert [name for name in descriptors if name.startswith(str(tmp_path))] == []


@pytest.mark.parametrize("direct", [False, True])
def test_a_measurement_is_plausible_and_avoids_the_page_cache(tmp_path, monkeypatch, direct):
    reopen, flags = disk_speed._reopen, []

    def watched(*args, **named):
        descriptor = reopen(*args, **named)
        flags.append(fcntl.fcntl(descriptor, fcntl.F_GETFL))
        return descriptor

    monkeypatch.setattr(disk_speed, "_reopen", watched)
    try:
        speed = measure(tmp_path, direct, num_bytes=SMALL)
    except ValueError as error:
        pytest.skip(str(error))
    assert {bool(of & os.O_DIRECT) for of in flags} == {direct}
    assert 1e-8 < speed.seconds_per_read < 1
    assert 1e4 < speed.bytes_per_second < 1e12


def test_a_file_system_without_direct_reads_is_refused(tmp_path, monkeypatch):
    def refuse(file, direct):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(disk_speed, "_reopen", refuse)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path)) + r".*storage\.direct"):
        measure(tmp_path, direct=True, num_bytes=SMALL)


class Reads:
    """Reads that take so many seconds and have this result."""

    def __init__(self, seconds=0.0, result=(-1, 0)):
        self.seconds, self.result, self.calls = seconds, result, []

    def read(self, files_N, *others):
        time.sleep(self.seconds)
        self.calls.append(len(files_N))
        return self.result

    def close(self):
        pass


def test_measuring_a_slow_disk_stops_early(tmp_path, monkeypatch):
    """64 MiB, 10 ms a call: each measurement stops after one, of 256 scattered pages or of 2,048 in a row."""
    reads = Reads(0.01)
    monkeypatch.setattr(disk_speed, "reads_of", lambda *arguments: reads)
    monkeypatch.setattr(disk_speed, "SECONDS", 0.005)
    monkeypatch.setattr(disk_speed, "REPEATS", 1)
    speed = measure(tmp_path, direct=False)
    assert reads.calls == [256, 2048]
    assert speed.seconds_per_read > 0.01 / 256
    assert speed.bytes_per_second < 2048 * 4096 / 0.01


def test_a_failed_read_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_speed, "reads_of", lambda *arguments: Reads(result=(0, errno.EIO)))
    with pytest.raises(OSError, match="read back") as error:
        measure(tmp_path, direct=False, num_bytes=SMALL)
    assert error.value.errno == errno.EIO


def limited(limit, function):
    """Call with less than a limit of the system, for this process, which stays as large as it is."""
    before = resource.getrlimit(limit)
    at_most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (16 << 20)
    resource.setrlimit(limit, (at_most if limit == resource.RLIMIT_AS else 4 << 20, before[1]))
    try:
        function()
    finally:
        resource.setrlimit(limit, before)


def test_too_little_memory_to_measure_is_reported(tmp_path):
    with pytest.raises(MemoryError, match="for a scratch file of 64 MiB that measures the disk's speed"):
        limited(resource.RLIMIT_AS, lambda: measure(tmp_path, direct=False))


def test_a_scratch_file_that_cannot_be_written_is_reported(tmp_path):
    """By a limit on the sizes of files, of which Python ignores the signal."""
    with pytest.raises(OSError, match=f"File too large: {tmp_path} cannot hold a scratch file of 64 MiB") as error:
        limited(resource.RLIMIT_FSIZE, lambda: measure(tmp_path, direct=False))
    assert error.value.errno == errno.EFBIG


@pytest.mark.parametrize(("seconds", "rate", "gap"), [(0, 1e9, 0), (1e-5, 2e9, 20_000), (1e-6, 5e8, 500)])
def test_a_gap_is_read_over_if_that_takes_no_longer_than_a_read(seconds, rate, gap):
    assert DiskSpeed(seconds, rate).gap_bytes == gap
