"""Work on a table grows with the number of its columns, not with its square."""

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
    for count in (400, 2000):
        work, took = made(tmp_path / "wide.parquet", [f"c{n}" for n in range(count)]), []
        for _ in range(3):
            begin = time.thread_time()
            work()
            took.append(time.thread_time() - begin)
        seconds.append(min(took))
    # Five times the columns take five times as long, or 25 times if each looks at all others.
    assert seconds[1] < 12 * seconds[0]
