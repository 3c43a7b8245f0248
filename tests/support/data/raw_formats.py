"""Helpers: every raw format with sample lines, and reading a file into rows."""

from dataclasses import dataclass, replace

import pyarrow as pa
from support.data import raw_lines as made

from pipeline.prepare import formats
from pipeline.prepare.read import parts
from pipeline.prepare.stretches import cut_sources


@dataclass
class Raw:
    """A format, a function that makes lines of it, a line that it rejects, and a part of the reason."""

    format: formats.Format
    lines: object
    bad: bytes
    reason: str


RAWS = {
    "criteo": Raw(formats.criteo(), made.criteo_lines, b"1\t2\t3\n", "expected 40 columns, got 3"),
    "avazu": Raw(formats.avazu(), made.avazu_lines, b"1,0,14102100\n", "expected 24 columns, got 3"),
    "csv": Raw(formats.csv(made.CSV_COLUMNS), made.csv_lines, b"1,x,5,2024-02-01,a,1,n\n", "'price': 'x' is no float"),
    "libsvm": Raw(formats.libsvm(made.LIBSVM_NUMBERS), made.libsvm_lines, b"1 5:0.5\n", "a value other than 1"),
    "libffm": Raw(
        formats.libffm(made.LIBFFM_FIELDS, made.LIBFFM_MANY, made.LIBFFM_NUMBERS),
        made.libffm_lines,
        b"1 99:1:1\n",
        "a field that was not named",
    ),
}
BIG = 1 << 24


def parts_of(path, format, piece_bytes=BIG, skip=None, made=()):
    return [part for piece in cut_sources([path], format, piece_bytes) for part in parts(piece, format, skip, made)]


def table_of(path, format, piece_bytes=BIG, skip=None):
    found = parts_of(path, format, piece_bytes, skip)
    assert [part.number for part in found] == list(range(len(found)))
    assert [part.last for part in found] == [False] * (len(found) - 1) + [True]
    for part in found:
        assert part.table.schema == format.schema
        assert part.num_lines == part.table.num_rows + part.num_skipped
    return pa.concat_tables(part.table for part in found)


def skipped_of(path, format, share=1.0, piece_bytes=BIG):
    """Rows read, and number of lines skipped."""
    found = parts_of(path, format, piece_bytes, share)
    return pa.concat_tables(part.table for part in found), sum(part.num_skipped for part in found)


def small_csv(*columns, **changes):
    return replace(formats.csv(columns or ("click:label", "x:number", "city:category")), **changes)
