"""Unavoidable parts of a request, each measured alone: reads of the missed pages, and the dense part."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import types

from benchmarks.serve.load import F64
from benchmarks.serve.requests import CANDIDATES
from benchmarks.serve.servables import NUM_FIELDS
from pipeline.kernels import cpu
from pipeline.machine.memory import aligned_empty
from pipeline.records import I32, I64
from pipeline.serving.onnx_model import OnnxDense
from pipeline.serving.pages import U8, part_file
from pipeline.serving.servable import ONNX_FILE, ROWS_FOLDER, OpenedServable, read_checked

PAGE = 4096
READERS = 8
"""Number of threads for parallel reads; 16 are no faster on one core."""

_iovec = types.ExternalFunction("preadv", types.int64(types.int32, types.uintp, types.int32, types.int64))


@cpu
def read_each(files_R: I32, offsets_R: I64, pages_RB: U8) -> bool:
    """Read pages with one `preadv` each. Returns True if all reads were complete."""
    vector = np.empty(2, np.uint64)
    for r in range(files_R.size):
        vector[0], vector[1] = pages_RB[r].ctypes.data, pages_RB.shape[1]
        if _iovec(files_R[r], vector.ctypes.data, 1, offsets_R[r]) != pages_RB.shape[1]:
            return False
    return True


class BareReads:
    """Part files, read without the system's page cache and without fences, tags and the server's cache."""

    def __init__(self, opened: OpenedServable) -> None:
        self._page_bytes = opened.page_format.page_bytes
        paths = [part_file(opened.folder / ROWS_FOLDER, k) for k in range(len(opened.manifest.parts))]
        self._files_K = np.array([os.open(path, os.O_RDONLY | direct(path)) for path in paths], np.int32)
        sizes = [os.fstat(file).st_size // self._page_bytes for file in self._files_K]
        self._begins_K = np.append(0, np.cumsum(sizes))
        self._threads = ThreadPoolExecutor(READERS)

    def seconds(self, pages_R: I64, readers: int) -> float:
        """Seconds to read these pages with this number of threads."""
        pages_RB = aligned_empty((len(pages_R), self._page_bytes), np.uint8, PAGE)
        begun = time.perf_counter()
        parts_R = np.searchsorted(self._begins_K, pages_R, side="right") - 1
        files_R, offsets_R = self._files_K[parts_R], (pages_R - self._begins_K[parts_R]) * self._page_bytes
        cuts = [slice(n * len(pages_R) // readers, (n + 1) * len(pages_R) // readers) for n in range(readers)]
        work = self._threads.map if readers > 1 else map
        assert all(work(lambda cut: read_each(files_R[cut], offsets_R[cut], pages_RB[cut]), cuts))
        return time.perf_counter() - begun

    def close(self) -> None:
        self._threads.shutdown()
        for file in self._files_K.tolist():
            os.close(file)


def direct(path: Path) -> int:
    """Flag for reads that bypass the page cache, or 0 if the file system does not support it."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return 0
    return os.O_DIRECT


def dense_alone(opened: OpenedServable) -> Callable[[], float]:
    """Return a function that runs the dense part once for all candidates, and returns its seconds."""
    dense, dim = OnnxDense(read_checked(opened.folder, opened.manifest, ONNX_FILE), 1), opened.layout.embedding_dim
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal((CANDIDATES, *shape), np.float32) for shape in ((0,), (NUM_FIELDS, dim), (NUM_FIELDS,))
    ]

    def run() -> float:
        begun = time.perf_counter()
        dense(inputs[0], inputs[1], inputs[2])
        return time.perf_counter() - begun

    return run


def queued(moments: F64, services: F64) -> F64:
    """Latencies of requests with these service times and arrival times at a server that processes them one by one."""
    free, found = 0.0, np.empty(len(moments))
    for n, (moment, service) in enumerate(zip(moments.tolist(), services.tolist(), strict=True)):
        free = max(free, moment) + service
        found[n] = free - moment
    return found
