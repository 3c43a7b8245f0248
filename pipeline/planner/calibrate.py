"""Measurement of this machine's constants, which takes a few seconds, and the file that caches them between commands.

The file is specific to a processor, an amount of memory, a disk, and a set of versions. It is in the folder named by
PIPELINE_CACHE, by default in the user's cache folder. The machine is measured again if the file is missing or damaged.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from threading import Thread

import numpy as np

from pipeline.cluster.local import DaskExecutor, local_client
from pipeline.kernels.read_rows import PAGE_BYTES, make_scratch, read_rows
from pipeline.kernels.rows import gather_rows
from pipeline.kernels.tag import set_tags
from pipeline.machine import limits
from pipeline.machine.allocator import return_freed_memory
from pipeline.machine.cache import cache_folder
from pipeline.machine.memory import aligned_empty, resident_bytes
from pipeline.machine.processor import processor
from pipeline.planner.machine import Machine
from pipeline.planner.timing import fastest
from pipeline.records import U32, U64, Block, Plan, StageResult, Unique
from pipeline.schedule import BlockSchedule
from pipeline.stages import STAGES
from pipeline.stages.plan import RingRows, plan
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import measure
from pipeline.storage.durable import read_sealed, write_sealed
from pipeline.storage.files import Files
from pipeline.storage.key_map import KeyMap
from pipeline.storage.places import Caps, Places

VERSIONS = ("torch", "numba", "numpy", "dask", "ctr-pipeline")
ROW_WORDS, ROWS, KEYS, LOOKED_UP, PLANNED_SLOTS, BLOCKS = 64, 1 << 18, 1 << 20, 1 << 16, 1 << 18, 40
FILES, FILE_ROWS = 8, 1 << 14
"""Number of chunk files to write, 4 MiB each, and their rows. The median is used, since writes of other programs
sometimes delay a file."""
SENT_BYTES, MESSAGES = 32 << 20, 200


def this_machine(folder: Path, direct: bool, say: Callable[[str], None]) -> Machine:
    """Return the constants of this machine and of the disk of `folder`, cached or measured now; `say` is called before
    a measurement. Raises the exceptions of `disk_speed.measure`."""
    path = cache_file(folder, direct)
    with suppress(OSError, ValueError):
        return read_sealed(path, Machine)
    say(f"measuring this machine, once, for some seconds ({path} keeps it) ...")
    machine = calibrate(folder, direct)
    # Memory used for measuring must not count as RAM of a run.
    return_freed_memory()
    # If the file cannot be written, the next command measures again.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, machine)
    return machine


def cache_file(folder: Path, direct: bool) -> Path:
    """Path of the file for this machine, the disk of `folder`, and the way the log is read."""
    facts = [processor(), limits.cpus(), limits.memory(), os.stat(folder).st_dev, direct, platform.python_version()]
    key = hashlib.blake2b(repr([*facts, *map(version, VERSIONS)]).encode(), digest_size=6).hexdigest()
    return cache_folder() / f"machine-{key}.json"


def calibrate(folder: Path, direct: bool) -> Machine:
    """Measure all constants; those of the disk with temporary files in `folder`."""
    process = resident_bytes()
    speed = measure(folder, direct)
    write_rate, fsync, cached_read = _files(folder, direct)
    plan_key, plan_row, victim = _planning()
    network, message = _network()
    dask, block = _dask()
    return Machine(
        name=f"this machine ({processor()})",
        cores=limits.cpus(),
        ram=limits.memory(),
        scattered_read_seconds=speed.seconds_per_read,
        disk_read_bytes_per_second=speed.bytes_per_second,
        disk_write_bytes_per_second=write_rate,
        fsync_seconds=fsync,
        cached_read_seconds=cached_read,
        copy_bytes_per_second=_copy(),
        find_seconds=_find(),
        plan_key_seconds=plan_key,
        plan_row_seconds=plan_row,
        victim_seconds=victim,
        block_seconds=block,
        dask_bytes=dask,
        process_bytes=process,
        network_bytes_per_second=network,
        message_seconds=message,
    )


def _rows(num_rows: int) -> U32:
    rows_UW: U32 = aligned_empty((num_rows, ROW_WORDS), np.uint32)
    rows_UW[:] = np.arange(num_rows, dtype=np.uint32)[:, None]
    set_tags(rows_UW)
    return rows_UW


def _files(folder: Path, direct: bool) -> tuple[float, float, float]:
    """Throughput of writing chunk files in bytes/s, seconds until a file is durable, and CPU seconds per row read from
    the page cache."""
    rows_UW, files = _rows(FILE_ROWS), Files(cached=not direct)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".measure-") as scratch:
        short, long = (
            statistics.median(
                _seconds_of_write(files, Path(scratch, f"{kind}{number}"), content) for number in range(FILES)
            )
            for kind, content in (("short", rows_UW[:16]), ("long", rows_UW))
        )
        rate = rows_UW.nbytes / max(long - short, long / 10)
        path = Path(scratch, "cached")
        path.write_bytes(rows_UW.tobytes())
        at_N = np.sort(np.random.default_rng(0).permutation(FILE_ROWS)[: FILE_ROWS // 8])
        out_UW, buffer = np.empty((len(at_N), ROW_WORDS), np.uint32), make_scratch(PAGE_BYTES)
        with open(path, "rb", buffering=0) as file:
            files_N = np.full(len(at_N), file.fileno(), np.int32)
            to_N, offsets_N = np.arange(len(at_N)), at_N * rows_UW[0].nbytes
            read = fastest(lambda: read_rows(files_N, offsets_N, to_N, out_UW, buffer, 0, 1))
    return rate, short, read / len(at_N)


def _seconds_of_write(files: Files, path: Path, content: U32) -> float:
    start = time.perf_counter()
    files.write(path, [content])
    return time.perf_counter() - start


def _copy() -> float:
    rows_UW, out_UW = _rows(ROWS), _rows(ROWS // 2)
    at_U = np.random.default_rng(0).permutation(ROWS)[: ROWS // 2].astype(np.int32)
    return out_UW.nbytes / fastest(lambda: gather_rows(rows_UW, at_U, out_UW))


def _find() -> float:
    """Seconds per lookup of a key that is in the map."""
    keys_N, of_map = _keys(), KeyMap()
    of_map.insert(keys_N, np.arange(KEYS))
    some_U = keys_N[np.random.default_rng(1).integers(0, KEYS, LOOKED_UP)]
    return fastest(lambda: of_map.find(some_U)) / LOOKED_UP


def _planning() -> tuple[float, float, float]:
    """Seconds of `plan` per key found on the device, per key whose row replaces another on the device, and per slot
    scanned for victims."""
    places = Places(PLANNED_SLOTS, 0, ("clock", "clock"), Caps(1 << 40, 1 << 40), Chunks(FILE_ROWS))
    places.begin_growth(at_least=KEYS)
    coming = iter([Unique(_block(n), keys_U, ()) for n, keys_U in enumerate(np.split(_keys(), KEYS // LOOKED_UP))])
    window = deque(islice(coming, 3))

    def next_block() -> None:
        assert isinstance(plan(window, places, RingRows(KEYS, KEYS)), Plan)
        window.append(next(coming))
        window.popleft()

    for _ in range(PLANNED_SLOTS // LOOKED_UP):
        next_block()
    moved = fastest(next_block) / LOOKED_UP
    here = Unique(_block(0), places.device.keys_S[:LOOKED_UP].copy(), ())
    found = fastest(lambda: plan([here] * len(window), places, RingRows(KEYS, KEYS))) / LOOKED_UP
    victim = fastest(lambda: places.device.policy.choose(LOOKED_UP // 4, places.device.occupied())) / PLANNED_SLOTS
    return found, max(1e-9, moved - found - victim * PLANNED_SLOTS / LOOKED_UP), victim


def _keys() -> U64:
    return np.random.default_rng(0).integers(0, 1 << 63, KEYS, dtype=np.uint64)


def _block(number: int) -> Block:
    return Block(number, "train", 0, number, 1, 0, 1, 1, number, False, number)


def _network() -> tuple[float, float]:
    """Loopback throughput in bytes/s, and seconds per small message."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = Thread(target=_echo, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()[:2]) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.perf_counter()
            for _ in range(MESSAGES):
                one.sendall(b"?")
                one.recv(1)
            message = (time.perf_counter() - start) / MESSAGES / 2
            start = time.perf_counter()
            one.sendall(bytes(SENT_BYTES))
            one.recv(1)
            seconds = time.perf_counter() - start
        echo.join()
    return SENT_BYTES / seconds, message


def _echo(server: socket.socket) -> None:
    """Answer each one-byte message; then receive SENT_BYTES and answer once."""
    other, _ = server.accept()
    with other:
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(MESSAGES):
            other.recv(1)
            other.sendall(b"!")
        left, buffer = SENT_BYTES, bytearray(1 << 20)
        while left:
            left -= other.recv_into(buffer, min(left, len(buffer)))
        other.sendall(b"!")


def _dask() -> tuple[int, float]:
    """Bytes of RAM that Dask takes, and CPU seconds per block of empty stages."""
    before = resident_bytes()
    with local_client("off") as client:
        executor = DaskExecutor(client, StageResult)
        cpu = time.process_time()
        BlockSchedule(range(BLOCKS), 2, [s for s in STAGES if s not in ("unite", "upload")], executor, _ignore).run()
        seconds = (time.process_time() - cpu) / BLOCKS
        executor.close()
        return max(0, resident_bytes() - before), seconds


def _ignore(done: StageResult) -> None:
    """Discard a result."""
