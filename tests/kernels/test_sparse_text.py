"""Lines of libsvm and libffm: the kernel finds what splitting at blanks and colons finds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.sparse_text import GOOD, parse_sparse, parse_sparse_reference

SLOTS = [0, 1, 2, -1, 0]
IS_NUMBER = [False, False, True]


def parsed(text, fielded, ignore_values):
    """Labels and tokens as the reference has them."""
    num_lines, num_colons = len(text.splitlines()), text.count(b":")
    labels, values, ends = (
        np.empty(num_lines, np.int8),
        np.empty(len(text), np.uint8),
        np.zeros(num_colons + 1, np.int32),
    )
    rows, slots, ids = (np.empty(num_colons, dtype) for dtype in (np.int32, np.int16, np.int64))
    data = np.frombuffer(text, np.uint8)
    code, found = parse_sparse(
        data,
        fielded,
        np.array(SLOTS, np.int32),
        np.array(IS_NUMBER),
        ignore_values,
        labels,
        rows,
        slots,
        ids,
        values,
        ends,
    )
    if code != GOOD:
        return code, found
    texts = [values[a:b].tobytes() for a, b in pairwise(ends[: found + 1])]
    tokens = zip(rows[:found].tolist(), slots[:found].tolist(), ids[:found].tolist(), texts, strict=True)
    return labels.tolist(), list(tokens)


NUMBERS = st.sampled_from(["0", "1", "2", "3", "4", "77", "999999999999999999"])
VALUES = st.sampled_from(["1", "1.", "1.00"])


def lines_of(labels, numbers, values, blanks, fielded):
    token = st.tuples(*[numbers] * (1 + fielded), values).map(":".join)
    line = st.tuples(labels, st.lists(token, max_size=4)).flatmap(
        lambda parts: st.lists(blanks, min_size=len(parts[1]), max_size=len(parts[1])).map(
            lambda between: parts[0] + "".join(b + t for b, t in zip(between, parts[1], strict=True))
        )
    )
    return st.lists(line, max_size=5).map(lambda lines: "".join(f"{line}\n" for line in lines).encode())


GOOD_LABELS, GOOD_BLANKS = st.sampled_from(["1", "0", "+1", "-1"]), st.sampled_from([" ", "\t", "   "])
ANY = {
    "labels": GOOD_LABELS | st.sampled_from(["", "2", "1.0", " 1", "+", "-"]),
    "numbers": NUMBERS | st.sampled_from(["", "-1", "x", "9" * 19]),
    "values": VALUES | st.sampled_from(["", "0.5", "2", "1.01", "x", "1:1"]),
    "blanks": GOOD_BLANKS,
}


@pytest.mark.parametrize("fielded", [False, True])
@pytest.mark.parametrize("ignore_values", [False, True])
@examples(25, 150)
@given(data=st.data())
def test_the_kernel_finds_the_tokens_of_the_reference(data, fielded, ignore_values):
    numbers = st.sampled_from(["0", "1", "2"])
    good = lines_of(
        GOOD_LABELS, numbers if fielded else NUMBERS.filter(lambda n: n != "3"), VALUES, GOOD_BLANKS, fielded
    )
    text = data.draw(good | lines_of(fielded=fielded, **ANY))
    if text:
        assert parsed(text, fielded, ignore_values) == parse_sparse_reference(
            text, fielded, SLOTS, IS_NUMBER, ignore_values
        )
