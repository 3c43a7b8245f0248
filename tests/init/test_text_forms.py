"""What a column of text is: a table of texts -> what `init` says of them -> what `prepare` reads by that."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.drafts import drafted, init, splits_of
from support.depth import examples

from pipeline.files.find import named
from pipeline.init.forms import SPELLINGS, form_of
from pipeline.init.text import look_at_text
from pipeline.prepare import formats
from pipeline.prepare.json_lines import json_parser
from pipeline.prepare.lines import RefusedLine
from pipeline.prepare.text import text_parser

FLOAT, TEXT = ("number", "float32"), ("category", "string")
WORDS = ["red", "green", "new shoes", "sale"]
LISTS = ["|".join(WORDS[n] for n in range(4) if bits >> n & 1) for bits in range(1, 16)]
CASES = {
    "whole": (["1", "-3", "0", "9223372036854775807"], ("number", "whole"), [1, -3, 0, 9223372036854775807]),
    "zeros": (["007", "7"], TEXT, None),
    "plus": (["+7", "7"], TEXT, None),
    "64 bits": (["9223372036854775808", "7"], TEXT, None),
    "minus": (["-0", "0"], TEXT, None),
    "hexadecimal": (["0x10", "7"], TEXT, None),
    "blanks": ([" 5", " 6"], ("number", "whole"), [5, 6]),
    "twins": ([" 5", "5"], TEXT, None),
    "floats": (["12.50", "1E-5", ".5", "5.", "+0.5", "7"], FLOAT, [12.5, 1e-5, 0.5, 5.0, 0.5, 7.0]),
    "floats and codes": (["0.5", "007"], TEXT, None),
    "too close": (["1.00000000000000001", "1.0"], TEXT, None),
    "ends in zeros": (["1.0", "1.00"], FLOAT, [1.0, 1.0]),
    "infinite": (["1e39", "0.5"], TEXT, None),
    "decimal commas": (["0,26", "-1,5", "3"], ("number", "comma"), [0.26, -1.5, 3.0]),
    "thousands": (["1,200", "15"], TEXT, None),
    "nothing in numbers": (["1.5", *SPELLINGS], FLOAT, [1.5, *[None] * len(SPELLINGS)]),
    "nothing in names": (["a", "NULL", "\\N"], TEXT, ["a", "NULL", "\\N"]),
    "booleans": (["TRUE", "False", "NA"], ("number", "bool"), [True, False, None]),
    "yes": (["yes", "no"], TEXT, None),
    "iso": (["2026-02-01T10:00:00Z", "2026-02-01 10:00:00.5+01:00", "2026-02-01"], ("time", "iso"), None),
    "points": (["01.02.2026", "28.02.2026 10:30"], ("time", "d.m.y"), None),
    "day first": (["24/11/2026", "01/02/2026"], ("time", "d/m/y"), None),
    "month first": (["11/24/2026", "01/02/2026"], ("time", "m/d/y"), None),
    "names of months": (["01-Jan-2026", "2 feb 2026 3:04 PM", "24/Nov/2026:10:30:00 +0000"], ("time", "d-mon-y"), None),
    "no such half": (["1/31/2026 13:04 PM"], TEXT, None),
    "either first": (["01/02/2026", "03/04/2026"], TEXT, None),
    "no such day": (["2026-02-30", "2026-02-01"], TEXT, None),
    "lists": (LISTS, ("category", "string[|]"), [text.split("|") for text in LISTS]),
    "whole lists": (["[1, 2]", "[3]", "[]"], ("category", "int64[json]"), [[1, 2], [3], []]),
    "text lists": (['["a","b"]', "['a']"], ("category", "string[json]"), [["a", "b"], ["a"]]),
    "vectors": (["[0.1, 0.2]"], TEXT, None),
    "titles": (["Shoes, red", "Shoes, blue", "Hats, green"], TEXT, None),
}


def column(texts):
    return pa.chunked_array([pa.array(texts, pa.string())])


def lines_of(texts):
    return b"".join(b'1,"' + text.replace('"', '""').encode() + b'"\n' for text in texts)


def parser_of(texts):
    """Role, type, and the parser by the schema that says them."""
    types = form_of("x", column(texts)).types
    role = next((role for role in ("number", "time") if types.get(role, "string") != "string"), "category")
    format = formats.csv(["click:label", f"x:{role}:{types[role]}"])
    nulls = SPELLINGS if role in ("number", "time") else ()
    fields = tuple(field._replace(nulls=nulls) if field.name == "x" else field for field in format.fields)
    return (role, types[role]), text_parser(formats.Format("csv", "text", fields, ",", quoting=True), ["click", "x"])


@pytest.mark.parametrize("case", CASES)
def test_texts_are_read_as_what_they_were_taken_for(case):
    texts, said, values = CASES[case]
    found, parse = parser_of(texts)
    assert found == said
    read = parse(lines_of(texts))["x"]
    assert read.to_pylist() == pa.array(texts if values is None else values, read.type).to_pylist()


WRITTEN = (
    st.integers(-(2**64), 2**64).map(str), st.floats(-1e9, 1e9).map(repr),
    st.sampled_from(["007", "7", "7.0", "7.", "+7", " 7", "7,0", "1e3", "1000", "NA", "-", "nan", "a|b", "[7]", "é"]),
    st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]), min_size=1, max_size=4),
)  # fmt: skip


@examples(16, 400)
@given(st.lists(st.one_of(WRITTEN), min_size=1, max_size=6))
def test_values_read_back_are_the_values_that_were_written(texts):
    (role, kind), parse = parser_of(texts)
    read = parse(lines_of(texts))["x"].to_pylist()
    if role == "category" and "[" not in kind:
        assert [str(value) for value in read] == [text.strip() if kind == "whole" else text for text in texts]
    for text, value in zip(texts, read, strict=True) if role == "number" else ():
        if text in SPELLINGS:
            assert value is None
        elif kind == "bool":
            assert value == (text.lower() == "true")
        else:
            assert value == (int(text) if kind == "whole" else np.float32(float(text.replace(",", "."))))


@pytest.mark.parametrize(
    ("columns", "text", "said"),
    [
        (["x:number:whole"], "007", "'x': '007' is no whole number as int64 is printed (x:category in the schema"),
        (["x:category:whole"], "12345678901234567890", "is no whole number as int64 is printed"),
        (["x:number"], "n.a.", "'x': 'n.a.' is no float (x:category in the schema takes any text; its `nulls`"),
        (["x:time:iso"], "01.02.2026", "'01.02.2026' is no time written iso; x:time:string takes any text"),
        (["x:category:int64[|]"], "1|a", "'x': 'a' is no whole number as int64 is printed"),
        (["x:category:int64[json]"], "[1", "'[1' is no list of int64 as JSON writes it"),
        (["x:category:int64[json]"], '[1]} {""v"":[2]', "is more than one list as JSON writes it"),
    ],
)
def test_what_the_sample_missed_is_refused_with_the_setting(columns, text, said):
    with pytest.raises(RefusedLine) as caught:
        text_parser(formats.csv(["click:label", *columns]), ["click", "x"])(f'1,"{text}"\n'.encode())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["$0.50", "$1,200.00"], "'$0.50' is read as text; write amounts as plain numbers"),
        (["12.5%", "3 %"], "write amounts as plain numbers"),
        (["Mon 1:30", "Tue 2:45"], "write times as 2026-11-24 10:30:00"),
        (["1.5", "2", "3", "4", "free"], "most values are numbers, but 'free' is not: read as text"),
        (["1.5", "-2e300", "0.1"], "-2e300 is beyond the range of float32"),
    ],
)
def test_a_column_in_doubt_is_text_with_a_note(texts, said):
    found = form_of("price", column(texts))
    assert said in found.note
    assert set(found.types) == {"category", "time"}


def test_nulls_of_one_column_are_no_nulls_of_another(tmp_path):
    schema = {"columns": ["click:label", "a:category", "b:category", "x:number"], "nulls": ["-"]}
    (tmp_path / "s.json").write_text(json.dumps(schema | {"nulls_of": {"a": ["?"]}}))
    read = text_parser(formats.csv(tmp_path / "s.json"), ["click", "a", "b", "x"])(b"1,?,?,-\n1,-,-,2\n")
    assert [read[name].to_pylist() for name in "abx"] == [[None, "-"], ["?", "-"], [None, 2.0]]
    (tmp_path / "s.json").write_text(json.dumps(schema | {"nulls_of": {"c": ["?"]}}))
    with pytest.raises(ValueError, match="nulls_of: there is no column c"):
        formats.csv(tmp_path / "s.json")


JSON = [
    "click:label", "u.id:category:int64", "v.w.x:category", "p:number", "tags:category:string[json]", "ok:number:bool",
]  # fmt: skip
ROW = b'{"click":1.0,"u":{"id":5},"v":{"w":{"x":"q"}},"p":0.5,"tags":["a",null],"ok":true,"other":[{}]}'


def test_objects_are_read_by_dotted_names():
    lines = (ROW, ROW.replace(b'"u":', b'"u.id":7,"u":'), b'{"click":0}')
    read = json_parser(formats.csv(JSON, "json"))(b"\r\n".join(lines))
    first = {"click": 1, "u.id": 5, "v.w.x": "q", "p": 0.5, "tags": ["a", None], "ok": True}
    assert read.to_pylist() == [first, first | {"u.id": 7}, dict.fromkeys(first) | {"click": 0}]


def test_numbers_in_quotes_are_read_as_numbers():
    columns = [*JSON[:2], "p:number", "n:number:int64", "won:label:-1/1", "ok:number:bool", "at:time:int64"]
    parse = json_parser(formats.csv(columns, "json"))
    text = b'{"click":"1","u":{"id":"5"},"p":"0.5","n":"-7","won":"-1","ok":"true","at":"9"}\n'
    first = {"click": 1, "u.id": 5, "p": 0.5, "n": -7, "won": 0, "ok": True, "at": 9}
    nothing = b'{"click":"0","p":"","n":null,"won":"1","at":"8"}\n'
    second = dict.fromkeys(first) | {"click": 0, "won": 1, "at": 8}
    assert parse(text + nothing).to_pylist() == [first, second]
    for wrong in (text.replace(b'"5"', b'"05"'), text.replace(b'"-7"', b"-7"), text.replace(b'"1"', b'"yes"')):
        with pytest.raises(RefusedLine):
            parse(text + wrong)
    names = ["it's", "a/b", "o.x/y", "all of \"' \n"]
    parse = json_parser(formats.csv(["click:label", *(f"{name}:number:int64" for name in names)], "json"))
    line = json.dumps({"click": "1", **dict.fromkeys(names, "7"), "o": {"x/y": "7"}})
    assert parse(line.encode()).to_pylist() == [{"click": 1, **dict.fromkeys(names, 7)}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "a blank line"),
        (ROW + ROW, "more than one object in the line"),
        (ROW[:-1], "not an object of JSON from its begin to its end"),
        *((line, "not an object of JSON") for line in (b'{"click":', b"1}", b"[1]")),
        *((ROW.replace(text, b"\xff"), "is not UTF-8") for text in (b"q", b"other")),
        (ROW.replace(b":5", b":5.5"), "column 'u.id': '5.5' is no int64"),
        (ROW.replace(b"1.0", b"2"), "column 'click': a label must be 0 or 1"),
        (ROW.replace(b"0.5", b'"a"'), "column 'p': 'a' is no float"),
        (ROW.replace(b'{"w"', b'["w"'), "column 'v' changed from object to array"),
    ],
)
def test_a_broken_object_is_refused_wherever_it_is(line, said):
    parse = json_parser(formats.csv(JSON, "json"))
    with pytest.raises(RefusedLine, match=said.replace("'", ".")):
        parse(line + b"\n")
    for lines in ([ROW, line, ROW], [line, ROW]):
        with pytest.raises(RefusedLine):
            parse(b"\n".join(lines))


def written(path, head, rows, **options):
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n", **options).writerows([head, *rows])
    return named(path)


def test_the_sample_reaches_the_middle_and_the_end_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.init.text.SAMPLE_BYTES", 1 << 14)
    for at in (60_000, 99_999):
        rows = [[n % 2, "007" if at - 15_000 <= n <= at else n % 90] for n in range(100_000)]
        found = look_at_text([written(tmp_path / "log.csv", ["click", "shop"], rows)])
        assert found.columns[1].types == {"category": "string", "time": "string"}
        assert found.rows == (pytest.approx(100_000, rel=0.1),)


def test_line_ends_in_quotes_and_trailing_delimiters_are_read(tmp_path):
    rows = [[n % 2, n % 9, f"two\nlines {n % 3}", ""] for n in range(300)]
    found = look_at_text([written(tmp_path / "log.csv", ["click", "user", "title", ""], rows)])
    assert found.options["newlines"]
    assert found.sample.column("title").to_pylist() == [row[2] for row in rows]
    file = written(tmp_path / "log.csv", ["click", "user", "title"], [[1, row[1], "shoes", ""] for row in rows])
    assert look_at_text([file]).sample.column_names == ["click", "user", "title"]
    rows = [["0,5", "1,25"], ["7,0", "3,1"]] * 20
    assert look_at_text([written(tmp_path / "log.csv", *rows[:1], rows, delimiter=";")]).options["delimiter"] == ";"
    file = written(tmp_path / "000000_0", *rows[:1], rows, delimiter="\x01")
    assert look_at_text([file]).options["delimiter"] == "\x01"


def test_backslashes_before_quotes_are_found(tmp_path):
    titles = ['5" pipe, big', "plain", 'the "best"']
    lines = [f'{n % 2},u{n % 9},"' + titles[n % 3].replace('"', '\\"') + '"\n' for n in range(300)]
    (tmp_path / "log.csv").write_text("click,user,title\n" + "".join(lines))
    found = look_at_text([named(tmp_path / "log.csv")])
    assert found.options["backslashes"]
    assert found.sample.column("title").to_pylist() == titles * 100


@pytest.mark.parametrize(
    ("head", "last", "said"),
    [
        (["click", "price", "price"], ["1", "2", "3"], "line 1 names 'price' more than once"),
        (["click", "user", ""], ["1", "2", "3"], "'3' is in column without a name 3; name it in the header"),
    ],
)
def test_tables_of_people_are_refused_with_what_is_wrong(tmp_path, head, last, said):
    file = written(tmp_path / "log.csv", head, [*[[str(n % 2), f"u{n}", ""] for n in range(99)], last])
    with pytest.raises(ValueError, match=said):
        look_at_text([file])


@pytest.mark.parametrize("names", [["click", "user", "city"], ["click", "n", "m"]])
def test_a_header_within_a_file_is_said_with_its_line(tmp_path, capsys, names):
    """As `cat *.csv` leaves it; the line is left out on request."""
    rows = [[n % 2, *([f"u{n % 7}", "ab"[n % 2]] if "user" in names else [n % 7, n])] for n in range(300)]
    written(tmp_path / "log.csv", names, [*rows[:150], names, *rows[150:]])
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 2
    said = "log.csv: line 152: the header again, as where files were joined; correct it, or leave bad lines out"
    assert said in capsys.readouterr().err
    drafted(tmp_path, "--skip-bad", "0.01")
    assert sum(split["rows"] for split in splits_of(tmp_path).values()) == 300


@pytest.mark.prove
@pytest.mark.parametrize("form", ["csv", "parts", "jsonl"])
def test_text_of_all_forms_becomes_a_workflow_in_one_command(tmp_path, form):
    """`prepare` reads the forms that `init` chose, and splits by the moments of the times. Numbers of JSON are in
    quotes."""
    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    rows = [
        {
            "click": int(rng.random() < 0.3), "shop": f"{n % 50:03}",
            "at": f"{1 + n % 1400 // 50:02}.{1 + n // 1400:02}.2026",
            "price": f"{n / 7:.2f}" if n % 9 else "NA", "tags": LISTS[n % 15], "mobile": "TRUE" if n % 3 else "FALSE",
        }
        for n in range(2800)
    ]  # fmt: skip
    if form == "jsonl":
        (data / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for part in range({"csv": 1, "parts": 3, "jsonl": 0}[form]):
        (data / "_SUCCESS").touch()
        of_part = rows if form == "csv" else rows[part::3]
        written(data / f"part-{part:05}.csv", list(rows[0]), [row.values() for row in of_part])
    drafted(tmp_path, source=data)
    splits = [pq.read_table(tmp_path / "my_data" / split) for split in ("train", "validation", "test")]
    assert sum(len(split) for split in splits) == 2800
    assert [splits[0].column(name).type for name in ("price", "tags")] == [pa.float32(), pa.list_(pa.string())]
    assert {split.column("shop").type for split in splits} == {pa.dictionary(pa.int32(), pa.string())}
    days = [max(at[3:5] + at[:2] for at in split.column("at").to_pylist()) for split in splits]
    assert days == sorted(set(days))
