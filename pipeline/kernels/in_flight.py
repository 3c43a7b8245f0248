"""Linux asynchronous I/O (io_submit, io_getevents): reads that proceed while the caller continues, without a thread.

Reads are asynchronous only for files that bypass the page cache (O_DIRECT), on file systems that support it. Other
reads are executed on submission, one after the other.
"""

from __future__ import annotations

import platform

import numpy as np
from numba import types

from pipeline.kernels import cpu
from pipeline.records import I64

REQUEST_WORDS, EVENT_WORDS = 8, 4
"""Number of 64-bit words of a request (struct iocb of <linux/aio_abi.h>) and of its completion event (io_event)."""

WAIT_SECONDS = 1

_IO_SETUP, _IO_DESTROY, _IO_SUBMIT, _IO_GETEVENTS = {
    "x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)
}.get(platform.machine(), (-1, -1, -1, -1))  # fmt: skip
_word = types.int64
_syscall = types.ExternalFunction("syscall", _word(_word, _word, _word, _word, _word, _word))


@cpu
def open_context(max_reads: int) -> int:
    """Open a context for up to `max_reads` reads in flight, for one thread at a time. Returns 0 if the system provides
    none (unsupported machine, sandbox, fs.aio-max-nr exhausted)."""
    context = np.zeros(1, np.int64)
    if _IO_SETUP < 0 or _syscall(_IO_SETUP, max_reads, context.ctypes.data, 0, 0, 0) != 0:
        return 0
    return context[0]


@cpu
def close_context(context: int) -> None:
    if context:
        _syscall(_IO_DESTROY, context, 0, 0, 0, 0)


@cpu
def write_request(requests_R8: I64, r: int, file: int, address: int, num_bytes: int, offset: int) -> int:
    """Fill in request `r`: read `num_bytes` at `offset` of `file` to `address`. Returns the request's address."""
    requests_R8[r, :] = 0  # The command IOCB_CMD_PREAD is also 0.
    requests_R8[r, 0] = r
    requests_R8[r, 2] = np.int64(file) << 32
    requests_R8[r, 3] = address
    requests_R8[r, 4] = num_bytes
    requests_R8[r, 5] = offset
    return requests_R8.ctypes.data + 8 * REQUEST_WORDS * r


@cpu
def submit(context: int, addresses_R: I64, num: int) -> int:
    """Submit the first `num` requests at these addresses, in order. Returns the number submitted. If it is less than
    `num`, the system refused the next request."""
    begun = 0
    while begun < num:
        more = _syscall(_IO_SUBMIT, context, num - begun, addresses_R.ctypes.data + 8 * begun, 0, 0)
        if more <= 0:
            break
        begun += more
    return begun


@cpu
def wait_for(context: int, num: int, events_R4: I64) -> int:
    """Wait until at least `num` requests are done, at most WAIT_SECONDS. Returns the number of events written; word 0
    of an event is the request's number, word 2 its result: bytes, or a negative errno. Returns 0 if a signal interrupts
    the wait and after any other error, so the context must not be closed during the wait."""
    timeout = np.array([WAIT_SECONDS, 0], np.int64)  # struct timespec
    return max(_syscall(_IO_GETEVENTS, context, num, len(events_R4), events_R4.ctypes.data, timeout.ctypes.data), 0)
