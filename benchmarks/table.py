"""A pipeline whose table is on disk before it starts, measured stretch by stretch."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disk.limits import read_each
from pipeline.data.source import Source
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.open import folder_of, local_crew
from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.monitor.progress import Progress
from pipeline.preflight.setup import Setup
from pipeline.records import StageCall, StageResult
from pipeline.schedule import BlockSchedule
from pipeline.storage.log import Log, rows_file
from pipeline.worker.worker import Worker

ANNOUNCED = 160
"""Number of blocks after a stretch whose keys a policy may need."""


class Stretches:
    """A run that is measured in parts: `run` trains the next blocks and returns when they have finished."""

    def __init__(self, setup: Setup, source: Source, run_dir: Path, client: Any) -> None:
        progress = Progress(1, stream=StringIO())
        device = choose(setup.workflow.device)
        crew = local_crew(setup, source, device, client)
        self.driver = Driver(setup, source, folder_of(setup, run_dir), crew, device.model, progress).open()
        self._blocks = list(self.driver.agenda.blocks(setup.fit.block_batches))
        self._look_ahead = setup.fit.look_ahead
        self._at = 0
        self.disk_rows_read = 0

    @property
    def worker(self) -> Worker:
        crew: Any = self.driver.crew
        worker: Worker = crew.worker
        return worker

    def run(self, num_blocks: int) -> tuple[float, list[StageCall]]:
        """Examples per second, including filling and draining of the pipeline, and the calls of the stages."""
        blocks = self._blocks[self._at : self._at + num_blocks]
        self._at += num_blocks
        self.worker.announce(self._blocks[self._at : self._at + ANNOUNCED])
        calls: list[StageCall] = []
        self.worker.stages.start(blocks, self._look_ahead)
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        start = time.perf_counter()
        with self.driver.progress, self.driver.crew.executor() as executor:
            refusal = BlockSchedule(
                numbers, self._look_ahead, self.worker.stages.names, executor, lambda done: self._keep(done, calls)
            ).run()
            for done in self.worker.drain():
                self._keep(done, calls)
        assert refusal is None, refusal.message
        return sum(block.num_examples for block in blocks) / (time.perf_counter() - start), calls

    def _keep(self, done: StageResult, calls: list[StageCall]) -> None:
        if done.call:
            calls.append(done.call)
        if done.moves:
            self.disk_rows_read += done.moves.disk_hits


def raw_row_rate(log: Log, num_rows: int, rows: int) -> float:
    """Rows per second of cold `pread` calls by 64 threads at random positions below `num_rows`; median of 5."""
    rng = np.random.default_rng(1)
    out_UW = np.empty((rows, log.layout.num_words), np.uint32)
    rates = []
    with drop_log_pages(log.path, 0.05), ThreadPoolExecutor(64) as threads, ExitStack() as stack:
        paths = [rows_file(log.path, c) for c in range(-(-num_rows // log.chunk_rows))]
        files_C = np.array([stack.enter_context(open(p, "rb", buffering=0)).fileno() for p in paths], np.int32)
        for _ in range(5):
            at_N = np.sort(rng.choice(num_rows, rows, replace=False))
            time.sleep(0.5)
            start = time.perf_counter()
            parts = [
                threads.submit(read_each, files_C, at_N, order_N, out_UW, log.chunk_rows)
                for order_N in np.array_split(np.arange(rows), 64)
            ]
            assert all(part.result() for part in parts)
            rates.append(rows / (time.perf_counter() - start))
    return statistics.median(rates)


def fill_log(worker: Worker, keys_per_field: tuple[int, ...]) -> int:
    """Write the initial row of every key (c0: 0 .. n0-1, c1: 0 .. n1-1, ...) to disk. Returns the number of rows."""
    places, log, chunk_RW = worker.tiers.places, worker.tiers.log, worker.tiers.chunk_RW
    keys_U = np.empty(sum(keys_per_field), np.uint64)
    first = 0
    for field, count in enumerate(keys_per_field):
        hash_integers(np.arange(count), table_salt(f"c{field}"), keys_U[first : first + count])
        first += count
    # The order must not depend on how often a key occurs.
    np.random.default_rng(0).shuffle(keys_U)
    for first in range(0, len(keys_U), log.chunk_rows):
        part_U = keys_U[first : first + log.chunk_rows]
        at = places.chunks.add(len(part_U))
        worker.stages._new_rows(part_U, chunk_RW[: len(part_U)])
        log.scatter(at, chunk_RW[: len(part_U)])
        places.map.insert(part_U, places.chunks.places_of(at))
    # As after a commit: these rows do not count as growth of the log.
    places.begin_growth()
    return len(keys_U)


def warm_log_pages(log_path: Path) -> None:
    """Read the whole log once, so that the page cache holds it."""
    buffer = bytearray(1 << 20)
    for path in (log_path / "rows").glob("c.*"):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


@contextmanager
def drop_log_pages(log_path: Path, seconds: float = 0.1) -> Iterator[None]:
    """Keep the log out of the page cache: now and every `seconds`, flush its files and drop their pages."""
    over = threading.Event()
    clean: set[Path] = set()

    def drop() -> None:
        for file in (log_path / "rows").glob("c.*"):
            _drop(file, file in clean)
            clean.add(file)

    def keep_dropping() -> None:
        while not over.wait(seconds):
            drop()

    os.sync()
    drop()
    thread = threading.Thread(target=keep_dropping)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _drop(file: Path, clean: bool) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if not clean:
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
