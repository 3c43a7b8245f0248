"""What is read is what is written: each format against a plain reading of the same lines, however the file is cut."""

import bz2
import csv
import dataclasses
import gzip
import io
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data import raw_lines as made
from support.data.parquet_files import with_columns
from support.data.raw_formats import BIG, RAWS, parts_of, skipped_of, small_csv, table_of
from support.depth import examples

from pipeline.prepare import formats
from pipeline.prepare.read import parts
from pipeline.prepare.stretches import cut_sources

NUM_LINES = 10_000


@pytest.fixture(params=RAWS)
def raw(request):
    return RAWS[request.param]


def plain_rows(name, text):
    """The rows of a text by Python's own means: splits, int and float."""
    format = RAWS[name].format
    if format.kind != "text":
        return [plain_sparse(line, format) for line in text.decode().splitlines()]
    quoting = csv.QUOTE_MINIMAL if format.quoting else csv.QUOTE_NONE
    lines = list(csv.reader(io.StringIO(text.decode()), delimiter=format.delimiter, quoting=quoting))
    names = lines.pop(0) if format.header else [f.name for f in format.fields]
    return [plain_row(dict(zip(names, line, strict=True)), format) for line in lines]


def plain_row(cells, format):
    row = {f.name: plain_value(cells[f.name], f.type) for f in format.in_lines if f.role != "skip"}
    if format.calendar:
        hour = row["hour"]
        # The 21st of October 2014 was a Tuesday.
        weekday = (hour // 100 % 100 - 21 + 1) % 7
        row |= {"hour_of_day": hour % 100, "weekday": weekday, "weekend": int(weekday in (5, 6))}
    return row


def plain_value(cell, kind):
    if cell == "" or pa.types.is_string(kind):
        return cell or None
    return pa.scalar(float(cell), pa.float32()).as_py() if pa.types.is_floating(kind) else int(cell)


def plain_sparse(line, format):
    label, *tokens = line.split()
    # In libsvm an absent index is 0.
    absent = {f.name: 0.0 for f in format.fields if f.role == "number"} if format.kind == "libsvm" else {}
    row = {f.name: None for f in format.fields} | absent | {"label": int(label in ("1", "+1"))}
    kinds = {f.name: f for f in format.fields}
    for token in tokens:
        *numbers, value = token.split(":")
        name = f"f{numbers[0]}" if format.kind == "libffm" else f"n{numbers[0]}"
        name = name if name in kinds else "ids"
        if kinds[name].role == "number":
            row[name] = plain_value(value, pa.float32())
        else:
            row[name] = [*(row[name] or []), int(numbers[-1])] if kinds[name].many else int(numbers[-1])
    return row


@pytest.mark.parametrize("name", RAWS)
def test_values_of_a_raw_format_match_a_plain_reading(tmp_path, name):
    text = RAWS[name].lines(NUM_LINES, 1)
    (tmp_path / "log").write_bytes(text)
    rows = table_of(tmp_path / "log", RAWS[name].format).to_pylist()
    assert len(rows) == NUM_LINES
    assert rows == [{n: row[n] for n in rows[0]} for row in plain_rows(name, text)]


@pytest.mark.parametrize("name", RAWS)
@examples(8, 25)
@given(seed=st.integers(0, 99), num=st.integers(1, 25), pieces=st.integers(1, 30), ended=st.booleans())
def test_rows_are_the_same_wherever_a_file_is_cut(tmp_path_factory, name, seed, num, pieces, ended):
    text = RAWS[name].lines(num, seed)
    # Of Criteo's lines one that ends in an empty value is taken for one that is cut off.
    if not ended and text[-2:-1].isalnum():
        text = text[:-1]
    path = tmp_path_factory.mktemp("cut") / "log"
    path.write_bytes(text)
    piece_bytes = max(1, len(text) // pieces)
    assert table_of(path, RAWS[name].format, piece_bytes).equals(table_of(path, RAWS[name].format))


@pytest.mark.parametrize("blank", [b"\n", b"\n\n\n", b"\r\n"])
@pytest.mark.parametrize("newlines", [False, True])
def test_blank_lines_that_end_a_file_are_no_rows(tmp_path, newlines, blank):
    format = dataclasses.replace(small_csv("click:label", "city:category"), newlines=newlines)
    text = b"click,city\r\n0,a\r\n1,\r\n"
    (tmp_path / "log").write_bytes(text + blank)
    (tmp_path / "log.gz").write_bytes(gzip.compress(text + blank))
    for name, piece_bytes in itertools.product(("log", "log.gz"), (*range(1, 20), BIG)):
        read = table_of(tmp_path / name, format, piece_bytes).to_pylist()
        assert read == [{"click": 0, "city": "a"}, {"click": 1, "city": None}]


@pytest.mark.parametrize(
    ("text", "format", "row"),
    [
        (b"city,click,other,x\na,1,?,5\n", small_csv(skip_others=True), {"city": "a", "click": 1, "x": 5.0}),
        (b"click, x , city\n1, 2, a\n", small_csv(), {"click": 1, "x": 2.0, "city": " a"}),
        (b"click, x \n1,2\n", small_csv("click:label", " x :number"), {"click": 1, " x ": 2.0}),
        (b"click,city\n1,\xff\xfe\n", small_csv("click:label", "city:category:binary"),
         {"click": 1, "city": b"\xff\xfe"}),
    ],
    ids=["order and others", "blanks around names", "blanks in names", "any bytes"],
)  # fmt: skip
def test_columns_are_found_by_their_names(tmp_path, text, format, row):
    (tmp_path / "log").write_bytes(text)
    assert table_of(tmp_path / "log", format).to_pylist() == [row]


def as_spark_writes(value):
    if not any(mark in value for mark in '",\n'):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@examples(16, 400)
@given(
    values=st.lists(st.text(st.sampled_from('ab",\\ \n'), min_size=1, max_size=6), min_size=1, max_size=5),
    newlines=st.booleans(),
    piece_bytes=st.integers(1, 60),
)
def test_quotes_with_backslashes_are_read_as_spark_writes_them(tmp_path_factory, values, newlines, piece_bytes):
    values = [value if newlines else value.replace("\n", "n") for value in values]
    path = tmp_path_factory.mktemp("spark") / "log"
    path.write_text("click,x,city\n" + "".join(f"1,2,{as_spark_writes(value)}\n" for value in values))
    format = small_csv(backslashes=True, newlines=newlines)
    assert table_of(path, format, piece_bytes)["city"].to_pylist() == values


CELLS = st.one_of(
    st.sampled_from(['"', '""', '"a', 'a"', '"a"', '"a,b"', '"a\nb"', "\ufeff", "\r", "é", "x" * 9, " ", "'"]),
    st.text(st.sampled_from('ab",\n\r \0'), max_size=5),
)


@examples(8, 200)
@given(
    cells=st.lists(st.tuples(st.sampled_from(["0", "1", "2", "", "\ufeff1"]), CELLS), min_size=1, max_size=8),
    piece_bytes=st.integers(1, 40),
)
def test_a_line_is_skipped_regardless_of_its_neighbours(tmp_path_factory, cells, piece_bytes):
    """Of any text: in any pieces the same lines are skipped, as they are alone; rows and skipped are all lines, but for
    blank ones at the end."""
    format = small_csv("click:label", "city:category", header=False)
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes("".join(f"{label},{city}\n" for label, city in [("0", ""), *cells]).encode())
    found, num_skipped = skipped_of(path, format)
    pieces, num_in_pieces = skipped_of(path, format, piece_bytes=piece_bytes)
    assert (pieces.to_pylist(), num_in_pieces) == (found.to_pylist(), num_skipped)
    lines = path.read_bytes().split(b"\n")[:-1]
    while not lines[-1].strip(b"\r"):
        lines.pop()
    assert found.num_rows + num_skipped == len(lines)
    alone = []
    for line in lines:
        path.write_bytes(b"0,\n" + line + b"\n")
        alone += skipped_of(path, format)[0].to_pylist()[1:]
    assert alone == found.to_pylist()


@examples(8, 100)
@given(
    cells=st.lists(st.text(st.sampled_from('ab",\n'), max_size=5), min_size=1, max_size=8),
    part_bytes=st.integers(1, 40),
)
def test_values_with_line_ends_survive_any_cut_of_the_stream(tmp_path_factory, cells, part_bytes):
    format = small_csv("click:label", "city:category", header=False, newlines=True)
    path = tmp_path_factory.mktemp("any") / "log"
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([1, cell] for cell in cells)
    found = table_of(path, format, part_bytes)
    assert found.column("city").to_pylist() == [cell or None for cell in cells]


def compressed(suffix, text):
    if compress := {".gz": gzip.compress, ".bz2": bz2.compress}.get(suffix):
        half = len(text) // 2
        return compress(text[:half]) + compress(text[half:])
    return pa.Codec("zstd").compress(text, asbytes=True)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("piece_bytes", [1, 777, BIG])
def test_a_compressed_file_has_the_rows_of_its_text(tmp_path, raw, suffix, piece_bytes):
    text = raw.lines(50, 2)
    (tmp_path / "log").write_bytes(text)
    (tmp_path / f"log{suffix}").write_bytes(compressed(suffix, text))
    found = table_of(tmp_path / f"log{suffix}", raw.format, piece_bytes)
    assert found.equals(table_of(tmp_path / "log", raw.format))


def test_parts_of_a_compressed_file_end_with_a_line(tmp_path):
    lines = made.criteo_lines(1000).splitlines(keepends=True)
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"".join(lines)))
    counts = [part.num_lines for part in parts_of(tmp_path / "log.gz", formats.criteo(), 10_000)]
    assert sum(counts) == 1000
    ends = itertools.accumulate(counts)
    *whole, last = [lines[end - count : end] for count, end in zip(counts, ends, strict=True)]
    assert all(len(b"".join(part[:-1])) < 10_000 <= len(b"".join(part)) for part in whole)
    assert len(b"".join(last)) <= 10_000


def test_skipping_a_finished_part_shifts_no_later_part(tmp_path, raw):
    (tmp_path / "log.gz").write_bytes(gzip.compress(raw.lines(60, 3)))
    piece = cut_sources([tmp_path / "log.gz"], raw.format, 600)[0]
    every = list(parts(piece, raw.format))
    some = list(parts(piece, raw.format, made={0, 2}))
    assert len(every) > 2
    for a, b in zip(every, some, strict=True):
        assert (a.number, a.num_lines, a.last) == (b.number, b.num_lines, b.last)
        assert b.table.equals(a.table.slice(0, 0) if b.number in (0, 2) else a.table)


def test_line_ends_and_byte_order_marks_never_enter_a_value(tmp_path, raw):
    text = raw.lines(30, 4)
    (tmp_path / "log").write_bytes(text)
    (tmp_path / "windows").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    (tmp_path / "windows.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n")))
    expected = table_of(tmp_path / "log", raw.format)
    assert table_of(tmp_path / "windows", raw.format, 500).equals(expected)
    assert table_of(tmp_path / "windows.gz", raw.format, 500).equals(expected)


@pytest.mark.parametrize(("rows_a_group", "piece_bytes"), [(7, 1), (7, 100), (7, BIG), (100, 50), (100, BIG)])
def test_rows_of_a_parquet_file_are_the_same_for_any_row_groups(tmp_path, rows_a_group, piece_bytes):
    (tmp_path / "log").write_bytes(made.csv_lines(100))
    table = table_of(tmp_path / "log", RAWS["csv"].format)
    stored = with_columns(table, age=table["age"].cast(pa.float64()), city=table["city"].dictionary_encode())
    pq.write_table(stored, tmp_path / "a.parquet", row_group_size=rows_a_group)
    format = formats.parquet_format(["click:label", "[ap]*:number", "day:time", "*:category"], [tmp_path / "a.parquet"])
    found = table_of(tmp_path / "a.parquet", format, piece_bytes)
    assert found.drop_columns("age").equals(table.drop_columns("age"))
    assert found.column("age").equals(table.column("age").cast(pa.float32()))
