"""A stand-in for Linux asynchronous reads and libc's pread, for kernels loaded in a separate process.

A test file, run as a script, calls `run_checks`, which lets each check replace the system calls beneath the kernels.
Run as a test, it calls `outcomes`, which runs the script.
"""

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

from pipeline.kernels import in_flight
from pipeline.kernels.read_rows import PAGE_BYTES

SYSCALL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6, use_errno=True)
PREAD = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, use_errno=True
)
NO_FILE = 99
CURRENT = []


class System:
    """Reads of `content`. Accepts at most `takes` requests per call and none after `refuses_after`, interrupts waiting
    `interrupts` times, and completes reads in reverse order. `results`: results, instead of lengths, of the reads that
    start at these pages."""

    def __init__(self, content, takes=1000, refuses_after=1000, interrupts=0, results=()):
        self.content = content
        self.takes, self.refuses_after, self.interrupts, self.results = takes, refuses_after, interrupts, dict(results)
        self.waiting, self.alone, self.most = [], [], 0

    def call(self, number, context, count, at, events, _):
        return self._submit(count, at) if number == in_flight._IO_SUBMIT else self._wait(number, count, at, events)

    def _submit(self, count, at):
        count = min(count, self.takes, self.refuses_after)
        self.refuses_after -= count
        for pointer in (ctypes.c_int64 * count).from_address(at):
            data, _, what, address, num_bytes, offset, *_ = struct.unpack("8q", ctypes.string_at(pointer, 64))
            assert what == NO_FILE << 32
            assert offset % PAGE_BYTES == num_bytes % PAGE_BYTES == address % PAGE_BYTES == 0
            part = self.content[offset : offset + num_bytes]
            result = self.results.get(offset // PAGE_BYTES, len(part))
            ctypes.memset(address, 0, num_bytes)
            ctypes.memmove(address, part, min(max(result, 0), len(part)))
            self.waiting.append((data, pointer, result, 0))
        self.most = max(self.most, len(self.waiting))
        return count if count else -1

    def _wait(self, number, least, most, events):
        assert number == in_flight._IO_GETEVENTS
        assert 0 < least <= min(most, len(self.waiting))
        if self.interrupts:
            self.interrupts -= 1
            return -1
        done = [self.waiting.pop() for _ in range(min(max(least, 3), len(self.waiting)))]
        packed = b"".join(struct.pack("4q", *event) for event in done)
        ctypes.memmove(events, packed, len(packed))
        return len(done)

    def pread(self, _, address, num_bytes, offset):
        self.alone.append(offset // PAGE_BYTES)
        part = self.content[offset : offset + num_bytes]
        ctypes.memmove(address, part, len(part))
        return len(part)


def put_beneath(system):
    """Make this process's kernels, which `run_checks` loaded, read from this system."""
    CURRENT[:] = [system]


def run_checks(checks):
    """Call each check and print its name and outcome. The kernels must not have been loaded before."""
    from llvmlite.binding import add_symbol

    syscall = SYSCALL(lambda *call: CURRENT[0].call(*call))
    pread = PREAD(lambda *call: CURRENT[0].pread(*call))
    add_symbol("syscall", ctypes.cast(syscall, ctypes.c_void_p).value)
    add_symbol("pread", ctypes.cast(pread, ctypes.c_void_p).value)
    for name, check in checks.items():
        try:
            check()
            print(name, "ok")
        except AssertionError as error:
            print(name, repr(error).replace("\n", " "))


def outcomes(script):
    """Run a test file as a script, and return the outcome of each of its checks, by name."""
    here = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    child = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=here)
    assert child.returncode == 0, child.stderr
    return dict(line.split(" ", 1) for line in child.stdout.splitlines())
