"""Pieces of input, each read by one task: a byte range of a text file, a compressed file, or row groups of a Parquet
file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from pipeline.data.files import open_file
from pipeline.files.find import DataFile
from pipeline.files.stores import stamp_of
from pipeline.messages.sizes import format_size_down
from pipeline.messages.uris import is_remote
from pipeline.prepare.formats import Format

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
LARGEST = 1 << 30
"""Maximum bytes of a part: Arrow counts the bytes of a column's text with 32 bits."""


@dataclass(frozen=True)
class Piece:
    """Input of one task. Its parts are numbered from `number` on."""

    file: int
    path: DataFile
    number: int
    begin: int
    end: int
    """Range `begin` .. `end`. Text file: bytes; the piece has the lines that begin after `begin` and not after `end`,
    and the first line if `begin` is 0. Parquet: row groups. Stream: all bytes of the file."""
    part_bytes: int
    """Bytes of text (Parquet: of values) after which a part of a stream, or of a large row group, ends."""


def codec_of(path: DataFile) -> str | None:
    return COMPRESSED.get(path.suffix)


def is_stream(path: DataFile, format: Format) -> bool:
    """True if the file can only be read from its beginning."""
    return codec_of(path) is not None or format.newlines


def cut_sources(paths: Sequence[DataFile], format: Format, piece_bytes: int) -> list[Piece]:
    """Pieces of all files, in order. Raises ValueError if a path is no file, a file is empty, or `piece_bytes` is out
    of range."""
    if not 1 <= piece_bytes <= LARGEST:
        raise ValueError(
            f"--piece-size {format_size_down(piece_bytes)}: choose a size from 1 B to {format_size_down(LARGEST)}"
        )
    return [piece for file, path in enumerate(paths) for piece in _pieces_of(file, path, format, piece_bytes)]


def _pieces_of(file: int, path: DataFile, format: Format, piece_bytes: int) -> Iterator[Piece]:
    if not (is_remote(str(path)) or os.path.isfile(path)):
        raise ValueError(f"{path}: is no file; correct the name, or leave it out")
    size = stamp_of(str(path)).size
    if size == 0:
        raise ValueError(f"{path}: is empty; is it complete? Leave it out if it should be")
    if format.kind == "parquet":
        yield from _row_groups(file, path, format, piece_bytes)
    elif is_stream(path, format):
        yield Piece(file, path, 0, 0, size, piece_bytes)
    else:
        for number, begin in enumerate(range(0, size, piece_bytes)):
            yield Piece(file, path, number, begin, min(begin + piece_bytes, size), piece_bytes)


def _row_groups(file: int, path: DataFile, format: Format, piece_bytes: int) -> Iterator[Piece]:
    """Pieces of consecutive row groups of at most `piece_bytes` together; a larger row group is a piece by itself."""
    with open_file(path) as opened:
        metadata = opened.metadata
    sizes = [bytes_of(metadata.row_group(g), format) for g in range(metadata.num_row_groups)]
    if not metadata.num_rows:
        raise ValueError(f"{path}: has no rows; is it the right file? Leave it out if it should be empty")
    number = begin = 0
    while begin < len(sizes):
        end = begin + 1
        while end < len(sizes) and sum(sizes[begin : end + 1]) <= piece_bytes:
            end += 1
        yield Piece(file, path, number, begin, end, piece_bytes)
        rows = metadata.row_group(begin).num_rows
        number += 1 if end - begin > 1 else num_parts(rows, sizes[begin], piece_bytes)
        begin = end


def bytes_of(group: pq.RowGroupMetaData, format: Format) -> int:
    """Bytes of a row group's values, and at most of the histories of its rows."""
    added = format.histories.row_bytes if format.histories else 0
    return int(group.total_byte_size) + group.num_rows * added


def rows_a_part(rows: int, num_bytes: int, part_bytes: int) -> int:
    """Rows per part, of about `part_bytes` each, if a row group is a piece by itself."""
    return max(1, math.ceil(rows / max(1, math.ceil(num_bytes / part_bytes))))


def num_parts(rows: int, num_bytes: int, part_bytes: int) -> int:
    return max(1, math.ceil(rows / rows_a_part(rows, num_bytes, part_bytes)))
