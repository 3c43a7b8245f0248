"""Lines of libsvm and libffm are read, or refused, as by splitting at blanks and colons."""

import re
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.preparations import prepare
from support.depth import examples

from pipeline.prepare import formats
from pipeline.prepare.lines import RefusedLine
from pipeline.prepare.sparse import sparse_parser

FORMATS = {
    "libsvm": lambda ignore: replace(found := formats.libsvm((2,), ignore), fields=(*found.fields, formats.QUERY)),
    "libffm": lambda ignore: formats.libffm((0, 1, 2), (0, 1), (2,), ignore_values=ignore),
}
LABELS = {"1": 1, "+1": 1, "0": 0, "-1": 0}


def plain(line, fielded, ignore):
    """Label, lists of ids by column, number and query of a line; None if the line is refused."""
    line = line if fielded else re.split("[ \t]#", line)[0]
    label, *tokens = [word for number, word in enumerate(line.replace("\t", " ").split(" ")) if word or not number]
    ids, numbers, queries = {}, [] if fielded else ["0"], []
    for token in tokens:
        if not fielded and re.fullmatch("qid:[0-9]{1,18}", token):
            queries.append(int(token[4:]))
            continue
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
    several = len(numbers) > 2 - fielded or len(queries) > 1
    if label not in LABELS or several or not all(re.fullmatch(r"[0-9.]+", value) for value in numbers):
        return None
    return LABELS[label], ids, pytest.approx(float(numbers[-1])) if numbers else None, (queries or [None])[0]


def rows_of(table, fielded):
    for row in table.to_pylist():
        lists = {0: row["f0"], 1: row["f1"]} if fielded else {0: row["ids"]}
        number = row["f2" if fielded else "n2"]
        yield row["label"], {slot: ids for slot, ids in lists.items() if ids is not None}, number, row.get("qid")


GOOD = {
    "label": st.sampled_from([*LABELS]),
    "number": st.sampled_from(["0", "1", "2", "77", "999999999999999999"]),
    "value": st.sampled_from(["1", "1.", "1.00"]),
}
ANY = {
    "label": GOOD["label"] | st.sampled_from(["", "2", "1.0", " 1", "+", "-"]),
    "number": GOOD["number"] | st.sampled_from(["", "-1", "x", "9" * 19]),
    "value": GOOD["value"] | st.sampled_from(["", "0.5", "2", "1.01", "x", "1:1", "1x", "1#2", "1\0", "1e39"]),
}


def lines_of(parts, fielded):
    token = st.tuples(*[parts["number"]] * (1 + fielded), parts["value"]).map(":".join)
    token = token if fielded else token | parts["number"].map("qid:{}".format)
    after = st.lists(st.tuples(st.sampled_from([" ", "\t", "   "]), token).map("".join), max_size=4).map("".join)
    ends = st.sampled_from(["", " "] if fielded else ["", " ", " # 1:2", "\t#2"])
    return st.tuples(parts["label"], after, ends).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("ignore", [False, True])
@examples(10, 150)
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


def test_a_query_in_a_first_line_becomes_a_column(tmp_path):
    (tmp_path / "log").write_text("1 qid:4 7:0.5 # best\n0 3:1\n")
    assert prepare("libsvm", tmp_path / "log", tmp_path / "out") == 0
    assert pq.read_table(tmp_path / "out" / "train").select(["label", "ids", "n7", "qid"]).to_pylist() == [
        {"label": 1, "ids": None, "n7": 0.5, "qid": 4}, {"label": 0, "ids": [3], "n7": 0, "qid": None},
    ]  # fmt: skip
