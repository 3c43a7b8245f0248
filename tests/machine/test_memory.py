"""Arrays are aligned as matrix libraries need it; systems without glibc are supported."""

import ctypes
import subprocess
import sys

import numpy as np
import psutil
import pytest

from pipeline.machine import process
from pipeline.machine.limits import ALIGNMENT, MAPPED_BYTES, aligned_empty, resident_bytes
from pipeline.machine.process import keep_freed_memory, share_one_arena


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.uint64])
@pytest.mark.parametrize("shape", [1, 7, (3, 5), (1, 1, 1), (129, 7), (1 << 20,), 0, (0, 4), (4, 0)], ids=str)
def test_an_array_is_aligned_and_has_the_requested_shape(shape, dtype):
    for _ in range(5):
        array = aligned_empty(shape, dtype)
        assert array.ctypes.data % ALIGNMENT == 0 or not array.size
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_resident_bytes_are_those_that_the_system_tells():
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.02)


KEPT = """
from pipeline.machine.limits import resident_bytes
from pipeline.machine.process import keep_freed_memory, return_freed_memory
keep_freed_memory()
before = resident_bytes()
block = bytearray(24 << 20)
del block
kept = resident_bytes() - before
return_freed_memory()
print(kept >> 20, resident_bytes() - before >> 20)
"""


def test_freed_memory_that_was_kept_is_returned_when_asked_for():
    done = subprocess.run([sys.executable, "-c", KEPT], check=True, capture_output=True, text=True)
    kept, left = map(int, done.stdout.split())
    assert kept >= 23
    assert left <= 2


def test_a_freed_large_array_returns_its_memory():
    keep_freed_memory()
    array = aligned_empty(4 * MAPPED_BYTES, np.uint8)
    before = resident_bytes()
    array[...] = 1
    assert resident_bytes() - before > 3 * MAPPED_BYTES
    del array
    assert resident_bytes() - before < MAPPED_BYTES


@pytest.mark.parametrize("num_bytes", [1 << 60, 1 << 70])
def test_an_array_larger_than_memory_is_a_memory_error(num_bytes):
    with pytest.raises(MemoryError, match=f"{num_bytes:,} bytes cannot be allocated"):
        aligned_empty(num_bytes, np.uint8)


ARENAS = """
import ctypes, sys, threading
from pipeline.machine.process import begin_command
begin_command()
import pyarrow
threads = [threading.Thread(target=bytearray, args=(1 << 20,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def test_threads_share_one_arena(tmp_path):
    """Those of Arrow, which start when it is imported, too."""
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("needs glibc")
    subprocess.run([sys.executable, "-c", ARENAS, str(tmp_path / "arenas.xml")], check=True)
    assert (tmp_path / "arenas.xml").read_text().count("<heap ") == 1


def test_a_system_without_mallopt_is_supported(monkeypatch):
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: object())
    share_one_arena()
    keep_freed_memory()


def test_the_allocator_accepts_every_setting(monkeypatch):
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        pytest.skip("needs glibc's mallopt")
    answers = []

    class Spy:
        @staticmethod
        def mallopt(option, value):
            answers.append(library.mallopt(option, value))

    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: Spy)
    share_one_arena()
    keep_freed_memory()
    assert answers == [1, 1, 1]
