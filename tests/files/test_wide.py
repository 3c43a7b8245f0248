"""Tables of many columns take work in their number, not its square, and nested values are read in parts."""

import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.find import named
from pipeline.files.flat import FlatFile, unite
from pipeline.prepare.formats import Format
from pipeline.prepare.read import parts
from pipeline.prepare.schema import Field
from pipeline.prepare.stretches import Piece
from pipeline.prepare.text import text_parser


def unite_files(path, names):
    schema = pa.schema([(name, pa.int64()) for name in names])
    return lambda: unite({named(f"{n}.parquet"): schema for n in range(2)})


def read_parquet(path, names):
    pq.write_table(pa.table({name: [1] for name in names}), path)
    return lambda: [*FlatFile(path, named(path)).iter_batches(1, columns=names)]


def prepare_parquet(path, names):
    pq.write_table(pa.table({name: [1] for name in names}), path)
    format = Format("parquet", "parquet", tuple(Field(name, "category", pa.int64()) for name in names))
    return lambda: [*parts(Piece(0, named(path), 0, 0, 1, 1 << 20), format)]


def parse_text(path, names):
    format = Format("csv", "text", tuple(Field(name, "number", pa.int64(), form="whole") for name in names), ",")
    parse, line = text_parser(format, names), ",".join("1" for _ in names).encode() + b"\n"
    return lambda: parse(line)


@pytest.mark.parametrize("made", [unite_files, read_parquet, prepare_parquet, parse_text])
def test_time_grows_with_the_columns_not_their_square(tmp_path, made):
    seconds = []
    for count in (200, 1000):
        work, took = made(tmp_path / "wide.parquet", [f"c{n}" for n in range(count)]), []
        for _ in range(3):
            begin = time.thread_time()
            work()
            took.append(time.thread_time() - begin)
        seconds.append(min(took))
    # Five times the columns take five times as long, or 25 times if each looks at all others.
    assert seconds[1] < 12 * seconds[0]


TEXTS = ["a", "b", "a", "c", None]
CODES = pa.array(TEXTS).dictionary_encode()
COLUMNS = {
    "dictionary in a struct": (pa.StructArray.from_arrays([CODES, CODES], ["a", "b"]), "x.b", 2),
    "dictionary in a list": (pa.ListArray.from_arrays(range(6), CODES), "x", 2),
    "view in a struct": (pa.StructArray.from_arrays([pa.array(TEXTS, pa.string_view())], ["a"]), "x.a", 5),
}
"""Column, name of the flat column, and rows of a row group: Arrow writes structs of views in one alone."""


@pytest.mark.parametrize("case", COLUMNS)
def test_nested_values_are_read_in_parts_of_any_size(tmp_path, case):
    column, name, rows = COLUMNS[case]
    pq.write_table(pa.table({"x": column, "n": range(5)}), tmp_path / "a.parquet", row_group_size=rows)
    values = [[text] for text in TEXTS] if name == "x" else TEXTS
    with FlatFile(tmp_path / "a.parquet", named(tmp_path / "a.parquet")) as file:
        groups = range(file.num_row_groups)
        assert file.read_row_groups(groups, [name, "n"]).column(name).to_pylist() == values
        for size in (1, 3, 10):
            batches = list(file.iter_batches(size, columns=["n", name]))
            assert max(batch.num_rows for batch in batches) <= size
            assert pa.Table.from_batches(batches).to_pydict() == {"n": [*range(5)], name: values}
        (last,) = file.iter_batches(10, row_groups=[groups[-1]], columns=[name])
        assert last.column(0).to_pylist() == values[-1:] if rows == 2 else values
