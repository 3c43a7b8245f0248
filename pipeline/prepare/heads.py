"""Checks of the first bytes of each source, before any output is made: the kind of file, and the columns named by its
header."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from contextlib import suppress

from pipeline.files.find import MARK, DataFile
from pipeline.files.flat import open_file
from pipeline.files.stores import open_bytes, stamp_of
from pipeline.prepare.formats import Format
from pipeline.prepare.lines import Text
from pipeline.prepare.stretches import COMPRESSED, first_line, first_lines, open_text
from pipeline.prepare.text import NAMELESS, with_doubled_quotes

PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ": ".xz", b"PK\x03\x04": ".zip"}
"""First bytes of compressed files -> suffix of their names."""
OTHERS = {
    b"ORC": "an ORC file", b"ARROW1": "an Arrow file (Feather)", b"Obj\x01": "an Avro file", b"SQLite": "a database",
    b"\x89HDF": "an HDF5 file", b"\x93NUMPY": "a NumPy file", b"\x80\x04\x95": "a pickle", b"\x80\x05\x95": "a pickle",
}  # fmt: skip
"""First bytes of files that neither command can read."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of UTF-16 text."""
OBJECTS = re.compile(rb"\s*(\{|\[\s*(\{|$))")
"""Pattern of a first line of JSON objects, one per line or not."""


def check_heads(paths: Sequence[DataFile], format: Format) -> None:
    """Check the sources of lines. Raises ValueError if one is another kind of file, or only some have the header."""
    if format.kind == "parquet":
        return
    for path in paths:
        _check_kind(path, format)
    _check_headers([path for path in paths if format.has_header(path)], format)


def has_rows(path: DataFile, format: Format | None) -> bool:
    """Return False for a file without rows, as some tools write: Parquet (`format` None) without rows, or text that is
    empty or only a header. Return True for an unreadable file: other checks report it better."""
    if not stamp_of(str(path)).size:
        return False
    if format is None:
        with open_file(path) as opened:
            return bool(opened.metadata.num_rows)
    try:
        first, second = first_lines(path, 2)
        if second:
            return True
        if (head := first.rstrip(b"\r\n")) and format.has_header(path):
            names_in(path, format)
        return bool(head) and not format.has_header(path)
    except ValueError:
        return True


def _check_kind(path: DataFile, format: Format) -> None:
    if not stamp_of(str(path)).size:
        raise ValueError(f"{path} is empty; is it complete? Leave it out if it should be empty")
    with open_bytes(str(path)) as file:
        head = file.read(8)
    packed = next((suffix for begin, suffix in PACKED.items() if head.startswith(begin)), None)
    if packed in COMPRESSED and packed == path.suffix:
        with suppress(OSError), open_text(path)[0] as file:
            head = file.read(8)
    if head.startswith(MARK):
        way = "decompress it: Parquet compresses itself"
        way = way if packed else "give the format parquet, with --schema NAME:ROLE ..."
        raise ValueError(f"{path} is a Parquet file, not lines of text; {way}")
    if other := next((what for begin, what in OTHERS.items() if head.startswith(begin)), None):
        raise ValueError(f"{path} is {other}, which is not supported; write it as Parquet, with the tool that wrote it")
    if head.startswith(UTF_16):
        raise ValueError(f"{path} is UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8")
    if head.startswith(b"sep="):
        raise ValueError(f"{path}: line 1 is a spreadsheet's mark, sep=; remove it")
    if path.suffix in (".xlsx", ".ods"):
        raise ValueError(f"{path} is a spreadsheet; save it as CSV in UTF-8")
    if packed and packed not in COMPRESSED:
        raise ValueError(f"{path} is compressed ({packed}); decompress it, or compress it as .gz or .zst")
    if packed and packed != path.suffix:
        raise ValueError(f"{path} is compressed as {packed}, which its name does not say; rename it to end in {packed}")
    if not packed and path.suffix in COMPRESSED:
        raise ValueError(f"{path} is not compressed, although its name ends in {path.suffix}; rename it")
    # An array is often one line, too long to be read as one.
    if OBJECTS.match(head) and head.lstrip().startswith(b"["):
        raise ValueError(f"{path} is a JSON array; write one object per line, as `jq -c '.[]'` does")
    first, second = (line.strip() for line in first_lines(path, 2)) if format.kind == "json" else (b"", b"")
    if OBJECTS.match(first) and not first.endswith(b"}") and second and not OBJECTS.match(second):
        raise ValueError(f"{path}: an object goes on in line 2; write one object per line, as `jq -c .` does")


def _check_headers(paths: Sequence[DataFile], format: Format) -> None:
    refused, first = {}, None
    for path in paths:
        try:
            names_in(path, format)
            first = first or path
        except ValueError as error:
            refused[path] = error
    if not refused:
        return
    path, reason = next(iter(refused.items()))
    line = first_line(path).decode(errors="replace")
    if first is None or any(field.name in line for field in format.in_lines):
        raise reason
    ours = " ".join(path.name for path in refused)
    way = (
        f"if its columns are in the order of --schema, give --no-header {ours}"
        if format.name == "csv"
        else "put the header of the other before its lines"
    )
    raise ValueError(f"{path}: has no header, {first} has one; {way}")


def values_in(path: DataFile, format: Format, count: int = 1) -> list[list[str]]:
    """Values of each of the first `count` lines, ignoring that quotes may contain newlines."""
    quote = '"' if format.quoting else None
    found: Sequence[Text] = first_lines(path, count)
    if format.backslashes:
        found = [with_doubled_quotes(line, format.delimiter) for line in found]
    lines = (line.rstrip(b"\r\n").decode(errors="replace") for line in found)
    try:
        return [next(csv.reader([line], delimiter=format.delimiter, quotechar=quote), []) for line in lines]
    except csv.Error as error:
        raise ValueError(f"{path}: line 1: lines must end in \\n or \\r\\n ({error})") from error


def names_in(path: DataFile, format: Format) -> list[str]:
    """Column names from the file's header, in order; names unknown to the format are stripped. Raises ValueError if the
    first line is not a header or names other columns."""
    names, in_path = [f.name for f in format.in_lines], dict(getattr(path, "partitions", ()))
    found = [name if name in names else name.strip() for name in values_in(path, format)[0]]
    found = [name or f"{NAMELESS}{number}" for number, name in enumerate(found, 1)]
    lacking = [name for name in names if name not in found and name not in format.left_out and name not in in_path]
    strangers = [] if format.skip_others else [name for name in found if name not in names]
    strangers = [name for name in strangers if not name.startswith(NAMELESS)]
    twice = sorted({name for name in found if found.count(name) > 1})
    if not (lacking or strangers or twice):
        return found
    problems = {"lacks": lacking, "has": strangers, "has more than once": twice}
    if lacking and {*lacking} <= {f.name for f in format.fields if f.role == "label"}:
        raise ValueError(
            f"{path}: has no column {', '.join(map(repr, lacking))}, a label; if its rows are to be scored, give "
            "--no-label"
        )
    said = ", and ".join(f"{verb} {', '.join(map(repr, names[:8]))}" for verb, names in problems.items() if names)
    way = (
        "Else name the columns that are there in --schema (NAME:skip leaves one out; skip_others = true in a schema "
        "file leaves out all that it does not name)"
    )
    raise ValueError(
        f"{path}: line 1 should name the columns of {format.name}, but {said}; is the header missing? "
        f"{way if format.name == 'csv' else 'Else use csv, with --schema'}"
    )
