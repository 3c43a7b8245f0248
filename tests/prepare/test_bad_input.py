"""Every way in which a file is not what its format says: an error with file and line, or counted and skipped."""

import bz2
import gzip
import tracemalloc
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data import raw_lines as made
from support.data.raw_formats import BIG, RAWS, parts_of, skipped_of, small_csv, table_of

from pipeline.prepare import formats
from pipeline.prepare.main import main
from pipeline.prepare.stretches import cut_sources


def refusal(path, format, piece_bytes=BIG, skip=None):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (each caller checks the words)
        parts_of(path, format, piece_bytes, skip)
    return str(caught.value)


@pytest.fixture(params=RAWS)
def raw(request):
    return RAWS[request.param]


@pytest.mark.parametrize("piece_bytes", [700, BIG])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("at", [2, 57, 99])
def test_a_bad_line_is_refused_with_its_number_and_reason(tmp_path, raw, at, suffix, piece_bytes):
    lines = raw.lines(99).splitlines(keepends=True)
    text = b"".join([*lines[:at], raw.bad, *lines[at:]])
    path = tmp_path / f"log{suffix}"
    path.write_bytes(gzip.compress(text) if suffix else text)
    message = refusal(path, raw.format, piece_bytes)
    assert message.startswith(f"{path}: line {at + 1}: ")
    assert raw.reason in message


@pytest.mark.parametrize("piece_bytes", [700, BIG])
def test_only_bad_lines_are_skipped_and_counted(tmp_path, raw, piece_bytes):
    lines = raw.lines(200).splitlines(keepends=True)
    (tmp_path / "good").write_bytes(b"".join(lines))
    bad = [line for n, line in enumerate(lines) for line in ([line, raw.bad, raw.bad] if n % 50 == 9 else [line])]
    (tmp_path / "bad").write_bytes(b"".join(bad))
    table, num_skipped = skipped_of(tmp_path / "bad", raw.format, piece_bytes=piece_bytes)
    assert num_skipped == len(bad) - len(lines)
    assert table.equals(table_of(tmp_path / "good", raw.format))


def test_bad_lines_beyond_the_allowed_share_are_refused(tmp_path):
    lines = made.criteo_lines(97).splitlines(keepends=True)
    (tmp_path / "log").write_bytes(b"".join([*lines[:50], b"x\n" * 3, *lines[50:]]))
    assert skipped_of(tmp_path / "log", formats.criteo(), 0.03)[1] == 3
    message = refusal(tmp_path / "log", formats.criteo(), skip=0.025)
    assert f"{tmp_path}/log: line 53: expected 40 columns, got 1" in message
    assert "bad line 3 of a part of 100 lines, 2 of which may be skipped" in message
    assert f"the first is {tmp_path}/log: line 51" in message


CSV_LINES = {
    b"1,5": "expected 3 columns, got 2",
    b"1,5,a,b": "expected 3 columns, got 4",
    b"": "column 'click': a label must be 0 or 1, got nothing",
    b",5,a": "column 'click': a label must be 0 or 1, got nothing",
    b"2,5,a": "column 'click': a label must be 0 or 1, got 2",
    b"-1,5,a": "column 'click': a label must be 0 or 1, got -1",
    b"1.0,5,a": "column 'click': '1.0' is no int8",
    b"300,5,a": "column 'click': '300' is no int8",
    b"yes,5,a": "column 'click': 'yes' is no int8",
    b"1,5x,a": "column 'x': '5x' is no float",
    b"1,NULL,a": "column 'x': 'NULL' is no float",
    b"1,1e39,a": "column 'x': a number must be finite and fit float, got inf",
    b"1,-inf,a": "column 'x': a number must be finite and fit float, got -inf",
    b"1,5,\xff": "column 'city' is not UTF-8",
    b"1,5,a\0": "a NUL byte",
    b"1,5,a\rb": "a carriage return",
    b"1,5,a\r1,6,b": "a carriage return",
    b'1,5,"a': "a quote that begins a value does not end in the line",
    b'1,"5,a': "expected 3 columns, got 2",
    b'1,5,"a\nb"': "a quote that begins a value does not end in the line",
    rb'1,5,"a \"b\""': "a quote after a backslash, within quotes; if that is meant, set backslashes = true",
    b"1,5," + b"a" * (3 << 20): "the line is longer than 1 MiB",
}


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("line", CSV_LINES, ids=lambda line: repr(line[:20]))
def test_a_bad_csv_line_is_refused_or_skipped_on_request(tmp_path, line, ended):
    path = tmp_path / "log"
    # A blank line that ends a file is no line.
    path.write_bytes(b"click,x,city\n1,2,a\n0,,\n" + (line or b"\n0,,") + b"\n" * ended)
    message = refusal(path, small_csv())
    assert message.startswith(f"{path}: line 4: {CSV_LINES[line]}")
    path.write_bytes(b"click,x,city\n1,2,a\n" + line + b"\n0,,\n")
    table, num_skipped = skipped_of(path, small_csv())
    assert table.to_pylist() == [{"click": 1, "x": 2, "city": "a"}, {"click": 0, "x": None, "city": None}]
    assert num_skipped == line.count(b"\n") + 1


def test_an_unexpected_header_is_refused_as_a_possible_header(tmp_path):
    names = "\t".join(f.name for f in formats.criteo().fields).encode() + b"\n"
    (tmp_path / "log").write_bytes(names + made.criteo_lines(5))
    message = refusal(tmp_path / "log", formats.criteo())
    assert "log: line 1 (a header? this format has none): column 'label': 'label' is no int8" in message


HEADERS = {
    b"1,2,a\n": "lacks 'click', 'x', 'city', and has '1', '2', 'a'",
    b"click,x\n": "lacks 'city'",
    b"click,x,city,more\n": "has 'more'",
    b"click,x,city,x\n": "has more than once 'x'",
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_wrong_header_is_refused_with_the_difference(tmp_path, header):
    (tmp_path / "log").write_bytes(header + b"1,2,a\n")
    message = refusal(tmp_path / "log", small_csv())
    assert f"{tmp_path}/log: line 1 should name the columns of csv, but {HEADERS[header]};" in message


def test_a_truncated_last_line_is_refused(tmp_path):
    """Criteo's last value has 8 digits: a file that ends within it, or before it, is distinguished from a whole one."""
    text = made.criteo_lines(20).removesuffix(b"\n")
    text = text[: text.rfind(b"\t") + 1] + b"0123abcd"
    length = len(text.splitlines()[-1])
    # The first ones end within the last value, and a few of the others within each of the values before it.
    for num_missing in [*range(10), *range(10, length, 7)]:
        (tmp_path / "log").write_bytes(text[: len(text) - num_missing])
        if num_missing == 0:
            assert table_of(tmp_path / "log", formats.criteo()).num_rows == 20
        else:
            assert "log: line 20: " in refusal(tmp_path / "log", formats.criteo())


def test_an_invalid_hour_is_refused(tmp_path):
    lines = made.avazu_lines(3).splitlines(keepends=True)
    for hour in (b"14133000", b"14022900", b"14103024", b"114103023", b"-4103023", b"14100023", b""):
        bad = lines[2].split(b",")
        bad[2] = hour
        (tmp_path / "log").write_bytes(b"".join([*lines[:2], b",".join(bad), lines[3]]))
        assert "log: line 3: column 'hour': " in refusal(tmp_path / "log", formats.avazu())


def broken(text):
    packed, zst = gzip.compress(text), pa.Codec("zstd").compress(text, asbytes=True)
    bz, flipped = bz2.compress(text), bytearray(packed)
    flipped[len(packed) // 2] ^= 4
    return {
        "cut.gz": packed[:-1000],
        "cut_in_checksum.gz": packed[:-3],
        "cut_second.gz": packed + packed[:20],
        "flipped.gz": bytes(flipped),
        "more.gz": packed + b"not gzip",
        "text.gz": text,
        "cut.zst": zst[:-1000],
        "cut_by_a_byte.zst": zst[:-1],
        "more.zst": zst + b"not zstd",
        "cut.bz2": bz[:-10],
        "more.bz2": bz + b"not bzip2",
    }


@pytest.mark.parametrize("name", broken(b"x"))
@pytest.mark.parametrize("piece_bytes", [1000, BIG])
@pytest.mark.parametrize("share", [None, 1.0])
def test_a_damaged_compressed_file_is_always_refused(tmp_path, name, piece_bytes, share):
    path = tmp_path / name
    path.write_bytes(broken(made.criteo_lines(200))[name])
    message = refusal(path, formats.criteo(), piece_bytes, share)
    assert message.startswith(f"{path} is cut off or damaged after line ")


def test_a_file_without_lines_is_refused(tmp_path):
    packed = {"log.gz": gzip.compress(b""), "h.gz": gzip.compress(b"click,x,city")}
    for name, content in (packed | {"header": b"click,x,city\n"}).items():
        (tmp_path / name).write_bytes(content)
        assert f"{tmp_path / name}: " in refusal(tmp_path / name, small_csv(), 5)
    assert f"{tmp_path}/log.gz: has no lines" in refusal(tmp_path / "log.gz", formats.criteo())
    with pytest.raises(ValueError, match="--piece-size 0 B: choose"):
        cut_sources([], small_csv(), 0)


def refusal_and_peak(*args):
    """And how many bytes were held on the way."""
    tracemalloc.start()
    try:
        return refusal(*args), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_file_without_line_ends_is_refused_in_bounded_memory(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"x" * (40 << 20), 1))
    (tmp_path / "log").write_bytes(b"x" * (40 << 20))
    for name in ("log", "log.gz"):
        message, peak = refusal_and_peak(tmp_path / name, formats.criteo(), 1 << 20)
        assert f"{tmp_path / name}: line 1 is longer than 1 MiB" in message
        assert peak < 8 << 20


def test_an_unclosed_quote_is_refused_in_bounded_memory(tmp_path):
    """A part of 1,000 bytes ends in line 168, within the quote that line 2 opens."""
    (tmp_path / "log").write_bytes(b'click,x,city\n1,2,"a\n' + b"1,2,a\n" * (1 << 20))
    message, peak = refusal_and_peak(tmp_path / "log", small_csv(newlines=True), 1000)
    assert f"{tmp_path / 'log'}: a value in quotes, begun in line 168 or before, does not end within" in message
    assert peak < 4 << 20
    (tmp_path / "log").write_bytes(b'click,x,city\n1,2,"a\n1,2,a\n')
    assert "log: line 2: " in refusal(tmp_path / "log", small_csv(newlines=True), 1000)


def test_a_bad_parquet_row_is_refused_or_skipped_on_request(tmp_path):
    table = pa.table({"click": [0.0, 1, 0.5, None, 1], "x": [1.0, 2, 3, 4, float("inf")], "c": ["a"] * 5})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    format = formats.parquet_format(["click:label", "x:number", "c:category"], [tmp_path / "a.parquet"])
    for piece_bytes in (1, BIG):
        message = refusal(tmp_path / "a.parquet", format, piece_bytes)
        assert f"{tmp_path}/a.parquet: row 3: column 'click': a label must be 0 or 1, got" in message
    found, num_skipped = skipped_of(tmp_path / "a.parquet", format)
    assert (found.column("x").to_pylist(), num_skipped) == ([1.0, 2.0], 3)


def test_a_parquet_file_that_does_not_fit_the_format_is_refused(tmp_path):
    pq.write_table(pa.table({"click": [0], "c": ["a"]}), tmp_path / "a.parquet")
    format = formats.parquet_format(["click:label", "c:category"], [tmp_path / "a.parquet"])
    others = {
        "column 'c' has values that string does not hold": pa.table({"click": [0], "c": [[1]]}),
        "has no rows": pa.table({"click": pa.array([], pa.int8()), "c": pa.array([], pa.string())}),
    }
    for words, other in others.items():
        pq.write_table(other, tmp_path / "b.parquet")
        assert words in refusal(tmp_path / "b.parquet", format)
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    assert "cannot be read as Parquet" in refusal(tmp_path / "b.parquet", format)


def test_an_unclosed_quote_in_a_skipped_column_is_refused(tmp_path):
    format = replace(small_csv("click:label", "city:category", "note:skip"), header=False)
    (tmp_path / "log").write_bytes(b'1,a,"x\n')
    assert "log: line 1" in refusal(tmp_path / "log", format)


SCHEMA = ("--schema", "click:label", "city:category")


def test_a_file_without_header_is_named_with_the_option_for_it(tmp_path, capsys):
    (tmp_path / "train.csv").write_text("city,click\na,1\nb,0\n")
    (tmp_path / "dev.csv").write_text("1,c\n0,d\n")
    sources = (tmp_path / "dev.csv", tmp_path / "train.csv")
    argv = ["csv", *map(str, sources), *SCHEMA, "--out", str(tmp_path / "out")]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert f"{sources[0]}: has no header, {sources[1]} has one; " in said
    assert said.endswith("give --no-header dev.csv\n")
    assert main([*argv, "--no-header", "dev.csv"]) == 0
    rows = [row for path in sorted((tmp_path / "out/train").iterdir()) for row in pq.read_table(path).to_pylist()]
    assert [(row["click"], row["city"]) for row in rows] == [(1, "c"), (0, "d"), (1, "a"), (0, "b")]


def test_a_damaged_row_group_is_named(tmp_path, capsys):
    columns = {"click": [0, 1] * 1000, "city": [f"{n}" for n in range(2000)]}
    pq.write_table(pa.table(columns), path := tmp_path / "log.parquet", use_dictionary=False)
    at, content = pq.read_metadata(path).row_group(0).column(1).data_page_offset, bytearray(path.read_bytes())
    content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)
    assert main(["parquet", str(path), *SCHEMA, "--out", str(tmp_path / "out")]) == 1
    assert f"{path}: row group 0: cannot be read, is the file complete?" in capsys.readouterr().err


BIG_ID, AGAIN = "1" + 21 * "0", "line 3: the header again, as where files were joined"
LINES = {
    "JSON: integers beyond 64 bits": (":", f'{{"click": 1, "city": {BIG_ID}}}\n', [BIG_ID]),
    "JSON: numbers, then text": (":", '{"city":7,"click":1}\n{"click":0,"city":"x7"}\n', ["7", "x7"]),
    "JSON: a key in text": (":", r'{"click":1,"city":"\"city\": 5"}' '\n{"click":1,"city":5}\n', ['"city": 5', "5"]),
    "JSON: too large": (":int64", f'{{"click":1,"city":{BIG_ID}}}\n', f"line 1: column 'city': '{BIG_ID}' is no int64"),
    "JSON: rounded": (":whole", f'{{"click":1,"city":{2**53 + 1}}}\n', "NAME:category in the schema takes it as text"),
    "JSON: an array": (":", "[" + '{"click":1,"city":"a"},' * 50_000, "is a JSON array; write one object per line"),
    "JSON: indented": (":", '{\n"click": 1, "city":"a"\n}\n', "an object goes on in line 2; write one object per line"),
    "joined files": (":", "click,city\n1,a\r\nclick,city\r\n0,b\n", AGAIN),
    "joined files of text": ("--no-label", "city\na\ncity\nb\n", AGAIN),
}
"""Type or option, a file, and the cities that are read, or what is said; bad lines of CSV may be skipped."""


@pytest.mark.parametrize("what", LINES)
def test_lines_that_people_have_are_read_or_refused(tmp_path, capsys, what):
    option, text, expected = LINES[what]
    (tmp_path / "log").write_text(text)
    more = [option] if option.startswith("--") else []
    schema = ("--schema", "click:label", f"city:category{'' if more else option.rstrip(':')}")
    argv = ["json" if "JSON" in what else "csv", str(tmp_path / "log"), *schema, *more, "--out", str(tmp_path / "out")]
    if isinstance(expected, str):
        assert main(argv) > 0
        assert expected in capsys.readouterr().err
    if "JSON" not in what or not isinstance(expected, str):
        assert main([*argv, "--skip-bad", "0.5"]) == 0
        rows = pq.read_table([*(tmp_path / "out").glob("t*/*.parquet")], partitioning=None).column("city")
        assert rows.to_pylist() == (["a", "b"] if isinstance(expected, str) else expected)
