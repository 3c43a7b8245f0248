"""Lines of libsvm and libffm are read, or refused, as by splitting at blanks and colons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.prepare import formats
from pipeline.prepare.lines import RefusedLine
from pipeline.prepare.sparse import sparse_parser

FORMATS = {
    "libsvm": lambda ignore: formats.libsvm((2,), ignore_values=ignore),
    "libffm": lambda ignore: formats.libffm((0, 1, 2), (0, 1), (2,), ignore_values=ignore),
}
LABELS = {"1": 1, "+1": 1, "0": 0, "-1": 0}


def plain(line, fielded, ignore):
    """Label, lists of ids by column, and number of a line; None if the line is refused."""
    label, *tokens = [word for number, word in enumerate(line.replace("\t", " ").split(" ")) if word or not number]
    ids, numbers = {}, []
    for token in tokens:
        *found, value = token.split(":", 1 + fielded)
        if len(found) != 1 + fielded or not all(n.isdigit() and len(n) <= 18 for n in found) or not value:
            return None
        slot = int(found[0])
        if fielded and slot > 2:
            return None
        if slot == 2:
            numbers.append(value)
            continue
        if not (value == "1" or value.rstrip("0") == "1.") and (not ignore or value.strip("0123456789.+-eE")):
            return None
        ids.setdefault(slot if fielded else 0, []).append(int(found[-1]))
    if label not in LABELS or len(numbers) > 1 or any(value in ("x", "1:1") for value in numbers):
        return None
    return LABELS[label], ids, pytest.approx(float(numbers[0])) if numbers else None


def rows_of(table, fielded):
    for row in table.to_pylist():
        lists = {0: row["f0"], 1: row["f1"]} if fielded else {0: row["ids"]}
        number = row["f2" if fielded else "n2"]
        yield row["label"], {slot: ids for slot, ids in lists.items() if ids is not None}, number


GOOD = {
    "label": st.sampled_from([*LABELS]),
    "number": st.sampled_from(["0", "1", "2", "77", "999999999999999999"]),
    "value": st.sampled_from(["1", "1.", "1.00"]),
}
ANY = {
    "label": GOOD["label"] | st.sampled_from(["", "2", "1.0", " 1", "+", "-"]),
    "number": GOOD["number"] | st.sampled_from(["", "-1", "x", "9" * 19]),
    "value": GOOD["value"] | st.sampled_from(["", "0.5", "2", "1.01", "x", "1:1"]),
}


def lines_of(parts, fielded):
    token = st.tuples(*[parts["number"]] * (1 + fielded), parts["value"]).map(":".join)
    after = st.lists(st.tuples(st.sampled_from([" ", "\t", "   "]), token).map("".join), max_size=4).map("".join)
    return st.tuples(parts["label"], after, st.sampled_from(["", " "])).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("ignore", [False, True])
@examples(25, 150)
@given(data=st.data())
def test_lines_are_read_or_refused_as_by_splitting(name, ignore, data):
    fielded, parse = name == "libffm", sparse_parser(FORMATS[name](ignore))
    lines = data.draw(st.lists(lines_of(GOOD, fielded), max_size=5) | st.lists(lines_of(ANY, fielded), max_size=5))
    expected = [plain(line, fielded, ignore) for line in lines]
    text = "".join(line + data.draw(st.sampled_from(["\n", "\r\n"])) for line in lines).encode()
    if None in expected:
        with pytest.raises(RefusedLine):
            parse(text)
    else:
        assert [*rows_of(parse(text), fielded)] == expected
