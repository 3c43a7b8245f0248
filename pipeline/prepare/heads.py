"""Checks of the first bytes of each source before anything is made: what kind of file it is, and whether it has a
header."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.data.files import open_file
from pipeline.files.find import DataFile
from pipeline.files.stores import open_bytes, stamp_of
from pipeline.prepare.formats import Format
from pipeline.prepare.pieces import COMPRESSED
from pipeline.prepare.read import names_in
from pipeline.prepare.stretches import first_line, has_second_line

PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ": ".xz", b"PK\x03\x04": ".zip"}
"""First bytes of compressed files, and the suffix of their names."""


OTHERS = {
    b"ORC": "an ORC file", b"ARROW1": "an Arrow file (Feather)", b"Obj\x01": "an Avro file", b"SQLite": "a database",
}  # fmt: skip
"""First bytes of files that neither command reads."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of text in UTF-16."""


def check_heads(paths: Sequence[DataFile], format: Format) -> None:
    """Raises ValueError if a source of lines is another kind of file, or only some of them have the header."""
    if format.kind == "parquet":
        return
    for path in paths:
        _check_kind(path)
    if format.header:
        _check_headers([path for path in paths if format.has_header(path)], format)


def has_rows(path: DataFile, format: Format | None) -> bool:
    """False for a part without rows, as other tools write it: Parquet (`format` None) without row groups, text without
    bytes, or with a header only. True for one that cannot be read, which other checks say better."""
    if not stamp_of(str(path)).size:
        return False
    if format is None:
        with open_file(path) as opened:
            return bool(opened.metadata.num_rows)
    try:
        if has_second_line(path):
            return True
        head = first_line(path)
        if head and format.has_header(path):
            names_in(path, format, [f.name for f in format.in_lines])
        return bool(head) and not format.has_header(path)
    except ValueError:
        return True


def _check_kind(path: DataFile) -> None:
    if not stamp_of(str(path)).size:
        raise ValueError(f"{path}: is empty; is it complete? Leave it out if it should be")
    with open_bytes(str(path)) as file:
        head = file.read(8)
    if head.startswith(b"PAR1"):
        raise ValueError(
            f"{path}: is a Parquet file, not lines of text; give the format parquet, with --schema NAME:ROLE ..."
        )
    if other := next((what for begin, what in OTHERS.items() if head.startswith(begin)), None):
        raise ValueError(f"{path}: is {other}, which is not read; write it as Parquet, with the tool that wrote it")
    if head.startswith(UTF_16):
        raise ValueError(f"{path}: is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8")
    if head.startswith(b"sep="):
        raise ValueError(f"{path}: line 1 is a mark of a spreadsheet, sep=; take it out")
    if path.suffix in (".xlsx", ".ods"):
        raise ValueError(f"{path}: is a spreadsheet; save it as CSV in UTF-8")
    packed = next((suffix for begin, suffix in PACKED.items() if head.startswith(begin)), None)
    if packed and packed not in COMPRESSED:
        raise ValueError(f"{path}: is compressed ({packed}); decompress it, or compress it as .gz or .zst")
    if packed and packed != path.suffix:
        raise ValueError(
            f"{path}: is compressed as {packed}, which its name does not say; rename it to end in {packed}"
        )
    if not packed and path.suffix in COMPRESSED:
        raise ValueError(f"{path}: is not compressed, although its name ends in {path.suffix}; rename it")


def _check_headers(paths: Sequence[DataFile], format: Format) -> None:
    names, refused, first = [f.name for f in format.in_lines], {}, None
    for path in paths:
        try:
            names_in(path, format, names)
            first = first or path
        except ValueError as error:
            refused[path] = error
    if not refused:
        return
    path, reason = next(iter(refused.items()))
    line = first_line(path).decode(errors="replace")
    if first is None or any(name in line for name in names):
        raise reason
    ours = " ".join(path.name for path in refused)
    way = (
        f"if its columns are in the order of --schema, give --no-header {ours}"
        if format.name == "csv"
        else "put the header of the other before its lines"
    )
    raise ValueError(f"{path}: has no header, {first} has one; {way}")
