"""Detection of files that do not answer: a hung disk or mount, a pipe without a writer. A watch thread finds the
threads of this process that are blocked on a file, names the file, and ends the process after END_SECONDS.

The kernel exposes the system call that a thread is in (/proc/self/task/*/syscall), so waits inside other libraries are
detected, and code that reads or writes files need not cooperate. If the kernel does not expose it, nothing is reported.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread, Timer, get_native_id, main_thread
from typing import Any

from pipeline.errors import PipelineError

CHECK_SECONDS = 1.0
SCAN_SECONDS = 5.0
"""Interval between checks of the threads, which cost 0.1 s of CPU time per hour for every 60 threads."""
REPORT_SECONDS = 60.0
END_SECONDS = 600.0
SIGNAL_SECONDS = 5.0
"""Time after a signal when the process reports what it is still doing."""
GRACE_SECONDS = 2.0
"""Time within which the process must end after a second signal."""

_CALLS = {
    "x86_64": {
        "reading": (0, 17, 19, 295, 327), "writing": (1, 18, 20, 296, 328), "syncing": (74, 75), "locking": (72, 73),
        "closing": (3,), "listing": (217,), "resizing": (77, 285), "looking at": (5,),
        "opening": (257, 437), "looking up": (262, 269, 332), "renaming": (264, 316), "making": (258,),
        "deleting": (263,), "opening ": (2,), "looking up ": (4, 6, 21, 89, 137), "renaming ": (82,),
        "making ": (83,), "deleting ": (87,),
    },
    "aarch64": {
        "reading": (63, 65, 67, 69, 286), "writing": (64, 66, 68, 70, 287), "syncing": (82, 83), "locking": (25, 32),
        "closing": (57,), "listing": (61,), "resizing": (46, 47), "looking at": (80,),
        "opening": (56, 437), "looking up": (48, 78, 79, 291), "renaming": (38, 276), "making": (34,),
        "deleting": (35,), "looking up ": (43,),
    },
}.get(os.uname().machine, {})  # fmt: skip
"""Numbers of system calls by action. The first argument is a file descriptor; from "opening" on, the second argument is
a path, or the first one if the word ends in a space."""
_CALL = {number: name for name, numbers in _CALLS.items() for number in numbers}
_BY_PATH = list(_CALLS)[list(_CALLS).index("opening") :] if _CALLS else []
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOST = 255
"""Byte that discards all signals sent before it."""

_doing: dict[int, str] = {}
_noted: dict[int, tuple[Any, str]] = {}
_gave_up: list[str] = []
_watches: list[FileWatch] = []


class Stuck(PipelineError):
    """A file did not answer for END_SECONDS. A thread may still be waiting for it, so nothing that the thread uses is
    released."""


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what the calling thread does within this context, for messages."""
    thread = get_native_id()
    before = _doing.get(thread)
    _doing[thread] = what
    try:
        yield
    finally:
        _doing.pop(thread)
        if before is not None:
            _doing[thread] = before


def note_wait(what: str | None, progress: Any = None) -> None:
    """Report that the calling thread waits for `what` in a way that the kernel does not expose; None: the wait is over.
    Its duration counts from the last change of `progress`. Raises Stuck like `check_stuck`."""
    if what is None:
        _noted.pop(get_native_id(), None)
    else:
        _noted[get_native_id()] = progress, what
        check_stuck()


def gave_up() -> bool:
    """True if a file did not answer for END_SECONDS: do not join threads that wait for it."""
    return bool(_gave_up)


def check_stuck() -> None:
    """Raises Stuck if a file did not answer for END_SECONDS. Waiting threads call this repeatedly."""
    if _gave_up:
        raise Stuck(_gave_up[0])


def file_waits() -> dict[int, tuple[Any, str]]:
    """Find the threads that wait for a file: by thread number, a value that changes when the thread runs, and a
    description."""
    found = dict(_noted)
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError, ValueError):
            call, ran = _content(f"{thread}/syscall").split(), _content(f"{thread}/schedstat")
            if thread not in found and (what := _file_of(call)):
                found[thread] = (call, ran), what
    return found


def _content(name: str) -> str:
    with open(f"/proc/self/task/{name}") as file:
        return file.read()


def _file_of(call: list[str]) -> str | None:
    """Describe what this system call does to which file; None if the call does not wait for a file."""
    if call[0] == "-1":
        return "reading a page of memory from the disk"
    name = _CALL.get(int(call[0])) if call[0] != "running" else None
    if name is None:
        return None
    if name in _BY_PATH:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(int(call[1 if name.endswith(" ") else 2], 16))
            path = os.fsdecode(memory.read(4096).split(b"\0")[0])
    else:
        path = os.readlink(f"/proc/self/fd/{int(call[1], 16)}")
        # Anonymous pipes, sockets and the like have no path.
        path = path if path.startswith("/") else ""
    devices = path.startswith(("/dev/", "/proc/", "/sys/")) and not path.startswith("/dev/shm/")
    return f"{name.strip()} {path!r}" if path and not devices else None


class FileWatch(Thread):
    """The watch thread."""

    def __init__(self, ends: bool) -> None:
        """`ends`: end the process if a file does not answer; else `check_stuck` raises."""
        super().__init__(name="watch", daemon=True)
        self._ends = ends
        self._awake, self._at = 0.0, time.monotonic()
        """Seconds during which this process was awake; a suspension of any length counts as two check intervals."""
        self._reported = self._looked = 0.0
        self._waits: dict[int, tuple[Any, str, float]] = {}
        # Waits that began before the watch are ignored.
        self._before = file_waits()
        self._signals: list[tuple[int, float]] = []
        self._signal_reported = False
        self._read, self.wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """The write end of the pipe receives signal numbers, and 0 to end the thread."""

    def run(self) -> None:
        pipe = select.poll()
        pipe.register(self._read, select.POLLIN)
        while True:
            got = os.read(self._read, 4096) if pipe.poll(1000 * CHECK_SECONDS) else b""
            if 0 in got:
                os.close(self._read)
                os.close(self.wakes)
                return
            now = time.monotonic()
            self._awake += min(max(0.0, now - self._at), 2 * CHECK_SECONDS)
            self._at = now
            if _LOST in got:
                self._signals, got = [], got[got.rindex(_LOST) :]
            self._signals += [(number, self._awake) for number in got if number in _SIGNALS]
            if self._signals:
                self._heed_signals()
            if self._awake - self._looked >= SCAN_SECONDS:
                self._looked = self._awake
                self._look()

    def send_again(self, lost: sys.UnraisableHookArgs) -> None:
        """Resend a SIGINT that arrived within a finalizer or a callback, where Python drops all exceptions."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            return sys.__unraisablehook__(lost)
        os.write(self.wakes, bytes([_LOST]))

        def again() -> None:
            # If the process is already ending, a signal would change its exit code.
            if main_thread().is_alive():
                os.kill(os.getpid(), signal.SIGINT)

        Timer(0.1, again).start()
        return None

    def _look(self) -> None:
        waits = {thread: wait for thread, wait in file_waits().items() if self._before.get(thread) != wait}
        before = self._waits
        self._waits = {
            thread: before[thread] if thread in before and before[thread][0] == state else (state, what, self._awake)
            for thread, (state, what) in waits.items()
        }
        seconds = self._awake - min((since for _, _, since in self._waits.values()), default=self._awake)
        if seconds >= END_SECONDS:
            text = (
                f"no answer for {seconds:.0f} s, {self._what(REPORT_SECONDS)}: check whether that disk or mount works"
            )
            _gave_up.append(f"{text}; this process may hold what it waits for until its end")
            if self._ends:
                _say(f"error: {text}; commits and finished files stay, and the same command resumes")
                os._exit(1)
        elif seconds >= REPORT_SECONDS and self._awake - self._reported >= REPORT_SECONDS:
            self._reported = self._awake
            what = self._what(REPORT_SECONDS)
            _say(f"no answer for {seconds:.0f} s, {what}; after {END_SECONDS:.0f} s the process ends")

    def _heed_signals(self) -> None:
        (number, asked), last = self._signals[0], self._signals[-1]
        # Python runs signal handlers between two steps of the main thread, which may be stuck within a step.
        if len(self._signals) > 1 and self._awake - last[1] >= GRACE_SECONDS:
            os._exit(128 + last[0])
        if not self._signal_reported and self._awake - asked >= SIGNAL_SECONDS:
            self._signal_reported = True
            self._look()
            _say(
                f"{signal.Signals(number).name} came {self._awake - asked:.0f} s ago, and this is not finished: "
                f"{self._what(0.0)}; a second signal ends the process at once"
            )

    def _what(self, seconds: float) -> str:
        """Describe the waits of at least `seconds`, and what is being done."""
        waits = {t: (what, self._awake - since) for t, (_, what, since) in self._waits.items()}
        long = {t: what for t, (what, lasts) in waits.items() if lasts >= seconds}
        texts = list(dict.fromkeys(long.values()))
        # A thread that reads has no entry in `_doing`, but the stage that waits for it has.
        named = list(dict.fromkeys(_doing[t] for t in long if t in _doing)) or list(dict.fromkeys(_doing.values()))
        more = [f"{len(texts) - 3} more"] * (len(texts) > 3)
        return " in ".join(filter(None, (", ".join(texts[:3] + more), ", ".join(named)))) or "at work"


def _say(text: str) -> None:
    # The leading newline ends the progress display's unfinished line.
    os.write(2, f"{chr(10) * os.isatty(2)}{text}\n".encode(errors="replace"))


def watch_process(signals: bool = True) -> None:
    """Watch this process until its end, as commands do. The process is ended if a file does not answer and, with
    `signals`, by a second SIGINT or SIGTERM even if the main thread is stuck."""
    if not _watches:
        _watches.append(watch := FileWatch(ends=True))
        if signals:
            signal.set_wakeup_fd(watch.wakes, warn_on_full_buffer=False)
            sys.unraisablehook = watch.send_again
        watch.start()


@contextmanager
def watched() -> Iterator[None]:
    """Watch for the duration of a call, in a process that must not be ended: `check_stuck` raises instead."""
    if _watches:
        yield
        return
    _gave_up.clear()
    _watches.append(watch := FileWatch(ends=False))
    watch.start()
    try:
        yield
    finally:
        _watches.clear()
        os.write(watch.wakes, b"\0")
        watch.join()
