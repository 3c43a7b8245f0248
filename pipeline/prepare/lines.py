"""Lines of a part: their number, their start offsets, and those rejected by a parser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipeline.records import I64

NEWLINE, QUOTE = ord("\n"), ord('"')
Text = bytes | bytearray


class RefusedLine(ValueError):
    """Text that does not match the format. The message follows "line 7: "."""


Parser = Callable[[Text], pa.Table]
"""Function that returns a table with one row per line, or raises RefusedLine. It rejects a text if and only if it
rejects one of the lines alone."""


def may_skip(share: float | None, num_lines: int) -> int:
    """Maximum number of rejected lines that are skipped and counted in a part of `num_lines` lines: `share` of them; 0
    if `share` is None. With a share, one line per part is always allowed, since the last part of a file may be too
    short for any."""
    return 0 if share is None else max(1, math.floor(share * num_lines))


def count_lines(text: Text, newlines_in_quotes: bool) -> int:
    """Number of lines, including a last line without a newline."""
    if newlines_in_quotes:
        return len(line_starts(text, True)) - 1
    return text.count(b"\n") + (len(text) > 0 and not text.endswith(b"\n"))


def line_starts(text: Text, newlines_in_quotes: bool) -> I64:
    """[lines + 1] start offsets of the lines, followed by the end of the last one."""
    values = np.frombuffer(text, np.uint8)
    is_end = values == NEWLINE
    if newlines_in_quotes:
        # A byte is inside quotes if preceded by an odd number of quotes; a doubled quote does not change the parity.
        is_end &= np.bitwise_xor.accumulate((values == QUOTE).view(np.uint8)) == 0
    starts = np.flatnonzero(is_end) + 1
    last = [] if not text or (len(starts) and starts[-1] == len(text)) else [len(text)]
    return np.concatenate([[0], starts, last]).astype(np.int64)


def refused_lines(text: Text, starts: I64, parse: Parser) -> Iterator[tuple[int, str]]:
    """Yield the index and reason of each rejected line, in order. The text as a whole must have been rejected.

    Lines are found by bisection: k bad lines out of n cost log2(k) + 2 times as much as parsing the whole text, in
    2 k log2(n / k) calls.
    """
    stack = [(0, len(starts) - 1)]
    while stack:
        begin, end = stack.pop()
        try:
            if begin or end < len(starts) - 1 or end == 1:
                parse(text[starts[begin] : starts[end]])
                continue
        except RefusedLine as refused:
            if end - begin == 1:
                yield begin, str(refused)
                continue
        middle = (begin + end) // 2
        stack += [(middle, end), (begin, middle)]


def parse_lines(
    text: Text, newlines_in_quotes: bool, parse: Parser, share: float | None, where: Callable[[int], str]
) -> tuple[pa.Table, int]:
    """Return the table of all accepted lines, and the number of rejected ones.

    Raises ValueError if more lines are rejected than may be skipped (see `may_skip`). `where` returns a description of
    the line that starts at an offset of the text.
    """
    try:
        return parse(text), 0
    except RefusedLine:
        starts = line_starts(text, newlines_in_quotes)
    num_lines = len(starts) - 1
    allowed = may_skip(share, num_lines)
    found: list[int] = []
    for line, reason in refused_lines(text, starts, parse):
        found.append(line)
        if len(found) <= allowed:
            continue
        place = f"{where(int(starts[line]))}: {reason}"
        if share is None:
            raise ValueError(f"{place}; correct it, or leave bad lines out (--skip-bad 0.001: up to one in a thousand)")
        raise ValueError(
            f"{place}; this is bad line {len(found):,} of a part of {num_lines:,} lines, {allowed:,} of which may be "
            f"skipped (a share of {share}); the first is {where(int(starts[found[0]]))}; correct them, or give a "
            "larger --skip-bad"
        )
    begins, pasts = [0, *(line + 1 for line in found)], [*found, num_lines]
    good = b"".join(bytes(text[starts[a] : starts[b]]) for a, b in zip(begins, pasts, strict=True))
    return parse(good), len(found)
