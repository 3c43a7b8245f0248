"""Reading of many rows from files by offset in one call, with a check of each tag, without the GIL.

Neighbours are read as one span if reading the gap costs less than another call. The maximum gap is ten times as long
for rows on disk as for rows in the page cache. Only the duration of a read distinguishes the two, so the kernel decides
by its last read. This changes no result.
"""

from __future__ import annotations

import os

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu, need_index
from pipeline.kernels.hint import prefetch_ahead
from pipeline.kernels.tag import tag_factors, tag_of, tag_reference
from pipeline.records import I32, I64, U32

U8 = NDArray[np.uint8]

SHORT, WRONG_TAG = -1, -2
"""Reasons, other than an errno, why a row could not be read: the file ends before the row; the tag is wrong."""
PAGE_BYTES = 4096
SCRATCH_BYTES = 1 << 20
CACHED_GAP = 4 << 10
"""Maximum gap in bytes for rows in the page cache. Measured: 4 KiB is 10 % faster than 2 KiB; 6 KiB is no faster."""
CACHED_NS = 20_000
CACHED_NS_PER_BYTE = 0.5
"""A read counts as served from memory if it takes at most CACHED_NS plus CACHED_NS_PER_BYTE per byte, including the
copying of the previous rows. The latency of flash alone is three times CACHED_NS."""
EINTR = 4
CLOCK_MONOTONIC = 1

# Functions of libc, resolved when the kernel is loaded, so that the compiled kernel can be cached on disk.
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))
_errno = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


def make_scratch(row_bytes: int) -> U8:
    """Allocate a page-aligned buffer for `read_rows`: SCRATCH_BYTES, or more if a single row needs more."""
    num_bytes = max(SCRATCH_BYTES, (row_bytes // PAGE_BYTES + 2) * PAGE_BYTES)
    around = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    begin = -around.ctypes.data % PAGE_BYTES
    return around[begin : begin + num_bytes]


def read_rows_reference(files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32) -> tuple[int, int]:
    """`read_rows` with one read per row, for rows in any order."""
    for n, (file, offset) in enumerate(zip(files_N, offsets_N, strict=True)):
        try:
            row = os.pread(file, out_UW[0].nbytes, offset)
        except OSError as error:
            return n, error.errno or SHORT
        if len(row) != out_UW[0].nbytes:
            return n, SHORT
        words = np.frombuffer(row, np.uint32)
        if words[-1] != tag_reference(words.tolist()):
            return n, WRONG_TAG
        out_UW[to_N[n]] = words
    return -1, 0


@cpu
def read_rows(
    files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32, scratch: U8, max_gap: int, alignment: int
) -> tuple[int, int]:
    """Read the row at each (file descriptor, byte offset) into row `to_N` of `out_UW`, and check its tag.

    Rows must be sorted by file and offset. Neighbours up to `max_gap` bytes apart (CACHED_GAP if they are in memory)
    form one span of at most `scratch.size` bytes. Spans begin and end at multiples of `alignment` (1, or PAGE_BYTES for
    O_DIRECT), except at the end of a file. `scratch` is from `make_scratch`. Returns (-1, 0), or the first row that
    could not be read and the reason: an errno, SHORT or WRONG_TAG.
    """
    need_cpu(min(offsets_N.size, to_N.size), files_N.size)
    row_bytes = 4 * out_UW.shape[1]
    odd_W = tag_factors(out_UW.shape[1])
    timespec = np.empty(2, np.int64)
    gap = min(max_gap, CACHED_GAP)
    before, bytes_before = _now(timespec), 0
    n = alone = 0
    while n < files_N.size:
        begin = offsets_N[n] // alignment * alignment
        span_gap = -row_bytes if n < alone else gap
        end = span_end(files_N, offsets_N, n, span_gap, begin + scratch.size, row_bytes)
        wanted = offsets_N[end - 1] + row_bytes - begin
        num_bytes = -(-wanted // alignment) * alignment
        need_cpu(scratch.size, num_bytes)
        error = read_span(files_N[n], scratch.ctypes.data, begin, num_bytes, wanted, alignment)
        # Time since the last read. A second reading of the clock per read would cost 5 % of a read from memory.
        now = _now(timespec)
        cached = now - before < CACHED_NS + CACHED_NS_PER_BYTE * (num_bytes + bytes_before)
        before, bytes_before = now, num_bytes
        gap = min(max_gap, CACHED_GAP) if cached else max_gap
        if error == 0:
            wrong = take_from_span(scratch, begin, offsets_N, to_N, n, end, out_UW, odd_W)
            if wrong >= 0:
                return wrong, WRONG_TAG
            n = end
        elif end == n + 1:
            return n, error
        else:
            # Read the span again row by row: this finds the bad row and ignores errors in the gaps.
            alone = end
    return -1, 0


@cpu
def span_end(files_N: I32, offsets_N: I64, n: int, gap: int, limit: int, row_bytes: int) -> int:
    """Return the first row after the span that begins with row `n` and ends at `limit` at the latest."""
    end = n + 1
    while (
        end < files_N.size
        and files_N[end] == files_N[n]
        and offsets_N[end] - offsets_N[end - 1] - row_bytes < gap
        and offsets_N[end] + row_bytes <= limit
    ):
        end += 1
    return end


@cpu
def read_span(file: int, address: int, begin: int, num_bytes: int, wanted: int, alignment: int) -> int:
    """Read until the first `wanted` of `num_bytes` bytes have arrived. Returns 0, an errno or SHORT."""
    got = 0
    while got < wanted:
        # A short read may end anywhere, but the next one must begin at a multiple of the alignment.
        known = got % alignment
        now = _pread(file, address + got - known, num_bytes - got + known, begin + got - known)
        if now > known:
            got += now - known
        elif now >= 0:
            return SHORT
        else:
            error = carray(_errno(), 1)[0]
            if error != EINTR:
                return int(error)
    return 0


@cpu
def take_from_span(
    scratch: U8, begin: int, offsets_N: I64, to_N: I64, n: int, end: int, out_UW: U32, odd_W: U32
) -> int:
    """Copy rows `n` to `end` - 1 from the span that begins at `begin`. Returns the first with a wrong tag, or -1."""
    words = scratch.view(np.uint32)
    base, row_bytes = out_UW.ctypes.data, 4 * out_UW.shape[1]
    for i in range(n, end):
        prefetch_ahead(base, to_N, i, row_bytes)
        word = (offsets_N[i] - begin) // 4
        need_cpu(words.size, word + out_UW.shape[1])
        need_index(to_N[i], out_UW.shape[0])
        for w in range(out_UW.shape[1]):
            out_UW[to_N[i], w] = words[word + w]
        if out_UW[to_N[i], odd_W.size] != tag_of(out_UW, to_N[i], odd_W):
            return i
    return -1


@cpu
def _now(timespec: I64) -> int:
    """Monotonic time in nanoseconds; `timespec` [2] is overwritten."""
    _clock_gettime(np.int32(CLOCK_MONOTONIC), timespec.ctypes.data)
    return timespec[0] * 1_000_000_000 + timespec[1]
