"""One-pass parser of libsvm (`label index:value ...`) and libffm (`label field:index:value ...`) lines into flat
arrays.

A token's slot is its column, given by its index in libsvm and by its field in libffm. Slots of ids require the value 1.
For slots of numbers, the text of the value is copied and the caller converts it with an exact parser. There is no CUDA
twin because text is parsed on the host.
"""

from __future__ import annotations

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.records import I32, I64, Array

SPACE, TAB, NEWLINE, RETURN, COLON, MINUS, PLUS, POINT, ZERO, EXPONENT, EXPONENT_LOWER = (
    ord(c) for c in " \t\n\r:-+.0Ee"
)
ONE = ZERO + 1
GOOD, BAD_LABEL, BAD_TOKEN, NO_SLOT, NOT_ONE = range(5)
MAX_DIGITS = 18
"""Maximum number of digits of an index. Any such number fits into an int64."""


def parse_sparse(
    text: Array,
    fielded: bool,
    slots: I32,
    is_number: Array,
    ignore_values: bool,
    labels_N: Array,
    rows_T: I32,
    slots_T: Array,
    ids_T: I64,
    values: Array,
    ends_T: I32,
) -> tuple[int, int]:
    """Parse lines. Returns (GOOD, number of tokens), or the kind of error and its line, counted from 0. After an error
    the arrays are invalid.

    `slots[n]` is the slot of index or field n, or -1 if it has none; the last entry applies to all higher n.
    `is_number` is indexed by slot. Labels 1 and +1 become 1; 0 and -1 become 0 (int8). Token t belongs to row
    `rows[t]`; its value is values[ends[t] : ends[t + 1]], which is empty except for numbers. The arrays must have room
    for one token per colon.
    """
    return parse_sparse_cpu(
        text, fielded, slots, is_number, ignore_values, labels_N, rows_T, slots_T, ids_T, values, ends_T
    )


def parse_sparse_reference(
    text: bytes, fielded: bool, slots: list[int], is_number: list[bool], ignore_values: bool
) -> tuple[list[int], list[tuple[int, int, int, bytes]]] | tuple[int, int]:
    """Return labels and (row, slot, id, value) of each token, or the kind of error and its line."""
    labels, tokens = [], []
    for row, line in enumerate(text.splitlines()):
        label, *others = line.split() or [b""]
        if label not in (b"1", b"+1", b"0", b"-1", b"+0", b"-0") or not line.startswith(label):
            return BAD_LABEL, row
        labels.append(int(int(label) == 1))
        for token in others:
            *numbers, value = token.split(b":", 1 + fielded)
            if len(numbers) != 1 + fielded or not all(n.isdigit() and len(n) <= MAX_DIGITS for n in numbers):
                return BAD_TOKEN, row
            slot = slots[min(int(numbers[0]), len(slots) - 1)]
            if not value:
                return BAD_TOKEN, row
            if slot < 0:
                return NO_SLOT, row
            one = value.rstrip(b"0") == b"1." if b"." in value else value == b"1"
            if not (is_number[slot] or one):
                if value.strip(b"0123456789.+-eE"):
                    return BAD_TOKEN, row
                if not ignore_values:
                    return NOT_ONE, row
            tokens.append((row, slot, int(numbers[-1]), value if is_number[slot] else b""))
    return labels, tokens


@cpu
def _ends_token(byte: int) -> bool:
    return byte in (SPACE, TAB, NEWLINE, RETURN)


@cpu
def _integer(text: Array, at: int) -> tuple[int, int]:
    """Return the number at `at` that ends with a colon, or -1, and the position after the colon."""
    begin, value = at, 0
    while at < text.size and ZERO <= text[at] <= ZERO + 9 and at - begin < MAX_DIGITS:
        value = value * 10 + text[at] - ZERO
        at += 1
    good = at > begin and at < text.size and text[at] == COLON
    return (value if good else -1), at + 1


@cpu
def _label(text: Array, at: int) -> tuple[int, int]:
    """Return the label (1 or 0; -1 if invalid) and the position after it."""
    minus = text[at] == MINUS
    if minus or text[at] == PLUS:
        at += 1
    if at == text.size or not (text[at] == ZERO or text[at] == ONE):
        return -1, at
    label = 1 if text[at] == ONE and not minus else 0
    at += 1
    return (label if at == text.size or _ends_token(text[at]) else -1), at


@cpu
def _is_one(text: Array, begin: int, end: int) -> bool:
    """True if the text is "1", or "1." followed by zeros only."""
    if text[begin] != ONE or (end > begin + 1 and text[begin + 1] != POINT):
        return False
    zeros = 0
    for at in range(begin + 2, end):
        zeros += text[at] == ZERO
    return zeros == max(0, end - begin - 2)


@cpu
def _is_numeric(text: Array, begin: int, end: int) -> bool:
    """True if the text contains only characters that occur in numbers."""
    for at in range(begin, end):
        byte = text[at]
        if not (ZERO <= byte <= ZERO + 9 or byte in (POINT, MINUS, PLUS, EXPONENT, EXPONENT_LOWER)):
            return False
    return True


@cpu
def _line_end(text: Array, at: int) -> tuple[bool, int]:
    """Skip the blanks at `at`. Return True and the position after the line if the line ends there, else False and the
    position after the blanks."""
    while at < text.size and (text[at] == SPACE or text[at] == TAB):
        at += 1
    if at + 1 < text.size and text[at] == RETURN and text[at + 1] == NEWLINE:
        return True, at + 2
    if at == text.size or text[at] == NEWLINE:
        return True, at + 1
    return False, at


@cpu
def parse_sparse_cpu(
    text: Array,
    fielded: bool,
    slots: I32,
    is_number: Array,
    ignore_values: bool,
    labels_N: Array,
    rows_T: I32,
    slots_T: Array,
    ids_T: I64,
    values: Array,
    ends_T: I32,
) -> tuple[int, int]:
    at = row = t = v = 0
    while at < text.size:
        label, at = _label(text, at)
        if label < 0:
            return BAD_LABEL, row
        need_cpu(labels_N.size, row + 1)
        labels_N[row] = label
        ended, at = _line_end(text, at)
        while not ended:
            first, at = _integer(text, at)
            last = first
            if fielded and first >= 0:
                last, at = _integer(text, at)
            begin = at
            while at < text.size and not _ends_token(text[at]):
                at += 1
            if last < 0 or at <= begin:
                return BAD_TOKEN, row
            slot = slots[min(first, slots.size - 1)]
            if slot < 0:
                return NO_SLOT, row
            if is_number[slot]:
                need_cpu(values.size, v + at - begin)
                for i in range(begin, at):
                    values[v] = text[i]
                    v += 1
            elif not _is_one(text, begin, at):
                if not _is_numeric(text, begin, at):
                    return BAD_TOKEN, row
                if not ignore_values:
                    return NOT_ONE, row
            need_cpu(min(rows_T.size, slots_T.size, ids_T.size, ends_T.size - 1), t + 1)
            rows_T[t], slots_T[t], ids_T[t] = row, slot, last
            t += 1
            ends_T[t] = v
            ended, at = _line_end(text, at)
        row += 1
    return GOOD, t
