"""Pages read from files, many in flight, whatever the system does with the requests."""

import ctypes
import errno
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from pipeline.kernels import read_pages as module
from pipeline.kernels.read_pages import WORK_WORDS, close_context, open_context, read_pages, read_pages_reference
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT
from pipeline.machine.memory import aligned_empty

CONTENT = np.random.default_rng(0).integers(0, 256, (40, PAGE_BYTES), np.uint8)
AT_ONCE = 16
NO_FILE = 99


def read(context, file, pages, page_bytes=PAGE_BYTES):
    """Result, and pages."""
    out = aligned_empty((len(pages), page_bytes), np.uint8, PAGE_BYTES)
    files_R, offsets_R = np.full(len(pages), file, np.int32), np.array(pages, np.int64) * page_bytes
    result = read_pages(context, files_R, offsets_R, out, np.full(len(pages) * WORK_WORDS, 77, np.int64))
    if file != NO_FILE:
        plain = aligned_empty(out.shape, np.uint8, PAGE_BYTES)
        assert result == read_pages_reference(files_R, offsets_R, plain)
    return result, out


@pytest.fixture(params=["many in flight", "one by one"])
def context(request):
    context = open_context(AT_ONCE) if request.param == "many in flight" else 0
    yield context
    close_context(context)


@pytest.fixture(params=["direct", "cached"])
def file(request, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT.tobytes())
    try:
        file = os.open(tmp_path / "part", os.O_RDONLY | (os.O_DIRECT if request.param == "direct" else 0))
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    yield file
    os.close(file)


def test_this_machine_keeps_many_reads_in_flight():
    context = open_context(AT_ONCE)
    assert context != 0
    close_context(context)


@pytest.mark.parametrize("pages", [[0], [39], [5, 3, 3, 8], range(AT_ONCE), []], ids=str)
def test_pages_are_those_asked_for(context, file, pages):
    for _ in range(3):
        result, out = read(context, file, list(pages))
        assert result == (-1, 0)
        assert (out == CONTENT[list(pages)]).all()


def test_larger_pages_are_read_whole(context, file):
    result, out = read(context, file, [3, 0, 12], 3 * PAGE_BYTES)
    assert result == (-1, 0)
    assert (out.reshape(-1, PAGE_BYTES) == CONTENT[[9, 10, 11, 0, 1, 2, 36, 37, 38]]).all()


def test_the_first_page_beyond_the_end_is_named(context, file):
    assert read(context, file, [1, 40, 2, 41])[0] == (1, SHORT)
    assert read(context, file, [1, 13], 3 * PAGE_BYTES)[0] == (1, SHORT)
    assert read(context, file, [39])[0] == (-1, 0)


def test_a_file_that_cannot_be_read_is_told_with_its_errno(context, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read(context, folder, [0, 1])[0] == (0, errno.EISDIR)
    os.close(folder)


# A system of our own, in a child: the compiled kernel calls `System.call`.
SYSCALL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6, use_errno=True)
PREAD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64)


class System:
    """Reads of CONTENT that take at most `takes` requests at a time, interrupt waiting, finish in reverse, and have
    `results` in place of the length of some pages."""

    def __init__(self, takes=100, refuses_after=100, interrupts=0, results=()):
        self.takes, self.refuses_after, self.interrupts, self.results = takes, refuses_after, interrupts, dict(results)
        self.waiting, self.alone = [], []

    def call(self, number, context, count, at, events, _):
        if number == module._IO_SUBMIT:
            count = min(count, self.takes, self.refuses_after)
            self.refuses_after -= count
            for pointer in (ctypes.c_int64 * count).from_address(at):
                data, _, what, address, num_bytes, offset, *_ = struct.unpack("8q", ctypes.string_at(pointer, 64))
                assert what == NO_FILE << 32
                assert offset % PAGE_BYTES == address % PAGE_BYTES == 0
                ctypes.memmove(address, CONTENT[offset // PAGE_BYTES].ctypes.data, num_bytes)
                result = self.results.get(offset // PAGE_BYTES, num_bytes)
                if result != num_bytes:
                    ctypes.memset(address, 0, num_bytes)
                self.waiting.append((data, pointer, result, 0))
            return count if count else -1
        assert number == module._IO_GETEVENTS
        if self.interrupts:
            self.interrupts -= 1
            return -1
        done = [self.waiting.pop() for _ in range(min(3, len(self.waiting)))]
        packed = b"".join(struct.pack("4q", *event) for event in done)
        ctypes.memmove(events, packed, len(packed))
        return len(done)

    def pread(self, _, address, num_bytes, offset):
        self.alone.append(offset // PAGE_BYTES)
        part = CONTENT.reshape(-1)[offset : offset + num_bytes]
        ctypes.memmove(address, part.ctypes.data, len(part))
        return len(part)


CURRENT = []


def check(system, alone=()):
    CURRENT[:] = [system]
    result, out = read(1, NO_FILE, range(10))
    assert result == (-1, 0)
    assert (out == CONTENT[:10]).all()
    assert system.waiting == []
    assert system.alone == list(alone)


def check_requests_taken_one_by_one_are_all_made():
    check(System(takes=1))


def check_an_interrupted_wait_is_taken_up_again():
    check(System(interrupts=5))


def check_requests_that_are_refused_are_read_alone():
    check(System(refuses_after=0), range(10))
    check(System(refuses_after=7), range(7, 10))


def check_pages_that_failed_or_were_cut_short_are_read_again_alone():
    check(System(results={3: 512, 5: -errno.EAGAIN, 9: 0}), [3, 5, 9])


FAULTS = [name for name in globals() if name.startswith("check_")]


@pytest.fixture(scope="module")
def faults():
    """What became of each check, run in a process whose kernel was loaded with other system calls."""
    child = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    return dict(line.split(" ", 1) for line in child.stdout.splitlines())


@pytest.mark.parametrize("name", FAULTS)
def test_a_system_that_refuses_requests_is_asked_as_its_check_says(faults, name):
    assert faults[name] == "ok"


if __name__ == "__main__":
    from llvmlite.binding import add_symbol

    syscall = SYSCALL(lambda *call: CURRENT[0].call(*call))
    pread = PREAD(lambda *call: CURRENT[0].pread(*call))
    add_symbol("syscall", ctypes.cast(syscall, ctypes.c_void_p).value)
    add_symbol("pread", ctypes.cast(pread, ctypes.c_void_p).value)
    for name in FAULTS:
        try:
            globals()[name]()
            print(name, "ok")
        except AssertionError as error:
            print(name, repr(error).replace("\n", " "))
