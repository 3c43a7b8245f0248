"""The lines of a part: how many, where they begin, and which of them a parser refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.records import I64

NEWLINE, QUOTE = ord("\n"), ord('"')
Text = bytes | bytearray


class RefusedLine(ValueError):
    """Why a text is not what the format says, in words that follow "line 7: "."""


Parser = Callable[[Text], pa.Table]
"""A table with a row for each line, or Refused. It refuses a text if and only if it refuses one of its lines alone."""


@dataclass(frozen=True)
class BadLines:
    """The rule for lines that are refused."""

    share: float | None = None
    """None: the first one is an error. Else they are counted and left out, up to this share of a part's lines; a part
    may have one in any case, else the last part of a file, which may be short, could hardly have any."""

    def allowed(self, num_lines: int) -> int:
        return 0 if self.share is None else max(1, math.floor(self.share * num_lines))


def is_newline(text: Text, newlines_in_quotes: bool) -> NDArray[np.bool_]:
    """[bytes] whether a line ends there."""
    values = np.frombuffer(text, np.uint8)
    ends = values == NEWLINE
    if newlines_in_quotes:
        # Inside of quotes is what has an odd number of them before it; a doubled quote changes nothing about it.
        ends &= np.bitwise_xor.accumulate((values == QUOTE).view(np.uint8)) == 0
    return ends


def count_lines(text: Text, newlines_in_quotes: bool) -> int:
    """Also a last line without an end is one."""
    if newlines_in_quotes:
        return len(line_starts(text, True)) - 1
    return text.count(b"\n") + (len(text) > 0 and not text.endswith(b"\n"))


def line_starts(text: Text, newlines_in_quotes: bool) -> I64:
    """[lines + 1] where each line begins, and where the last one ends."""
    starts = np.flatnonzero(is_newline(text, newlines_in_quotes)) + 1
    last = [] if not text or (len(starts) and starts[-1] == len(text)) else [len(text)]
    return np.concatenate([[0], starts, last]).astype(np.int64)


def refused_lines(text: Text, starts: I64, parse: Parser) -> Iterator[tuple[int, str]]:
    """Number and reason of each line that is refused, in order; the whole is known to be.

    By halving: k bad ones of n lines cost log2(k) + 2 times what parsing the whole costs, and 2 k log2(n / k) calls.
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
    text: Text, newlines_in_quotes: bool, parse: Parser, bad: BadLines, where: Callable[[int], str]
) -> tuple[pa.Table, int]:
    """The table of all lines that are not refused, and how many are.

    ValueError: more are than may be; `where` names the line that begins at a place of the text.
    """
    try:
        return parse(text), 0
    except RefusedLine:
        starts = line_starts(text, newlines_in_quotes)
    num_lines = len(starts) - 1
    allowed = bad.allowed(num_lines)
    found: list[int] = []
    for line, reason in refused_lines(text, starts, parse):
        found.append(line)
        if len(found) <= allowed:
            continue
        place = f"{where(int(starts[line]))}: {reason}"
        if bad.share is None:
            raise ValueError(f"{place}; correct it, or skip bad lines")
        raise ValueError(
            f"{place}; this is bad line {len(found):,} of a part of {num_lines:,} lines, {allowed:,} of which may be "
            f"skipped (a share of {bad.share}); the first is {where(int(starts[found[0]]))}"
        )
    begins, pasts = [0, *(line + 1 for line in found)], [*found, num_lines]
    good = b"".join(bytes(text[starts[a] : starts[b]]) for a, b in zip(begins, pasts, strict=True))
    return parse(good), len(found)
