"""Pieces of input, each processed by one task: a byte range of a text file, a compressed file, or row groups of a
Parquet file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.stores import stamp_of
from pipeline.messages.sizes import format_size_down
from pipeline.prepare.formats import Format

COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
LARGEST = 1 << 30
"""Maximum size of a part in bytes: Arrow's string columns have 32-bit offsets."""


@dataclass(frozen=True)
class Piece:
    """Input of one task. Its part numbers start at `number`."""

    file: int
    path: DataFile
    number: int
    begin: int
    end: int
    """Range `begin` .. `end`. Text file: bytes; the piece contains the lines that start after `begin` and not after
    `end`, and the first line if `begin` is 0. Parquet: row groups. Stream: all bytes of the file."""
    part_bytes: int
    """Size of the parts of a stream, or of a large row group, in bytes of text (Parquet: of values)."""


def codec_of(path: DataFile) -> str | None:
    return COMPRESSED.get(path.suffix)


def is_stream(path: DataFile, format: Format) -> bool:
    """True if the file can only be read sequentially from the start."""
    return codec_of(path) is not None or format.newlines


def cut_sources(paths: Sequence[DataFile], format: Format, piece_bytes: int) -> list[Piece]:
    """Pieces of all files, in order. Raises ValueError if a Parquet file has no rows, or `piece_bytes` is out of
    range."""
    if not 1 <= piece_bytes <= LARGEST:
        raise ValueError(
            f"--piece-size {format_size_down(piece_bytes)}: choose a size from 1 B to {format_size_down(LARGEST)}"
        )
    return [piece for file, path in enumerate(paths) for piece in _pieces_of(file, path, format, piece_bytes)]


def _pieces_of(file: int, path: DataFile, format: Format, piece_bytes: int) -> Iterator[Piece]:
    if format.kind == "parquet":
        yield from _row_groups(file, path, format, piece_bytes)
        return
    size = stamp_of(str(path)).size
    step = max(1, size) if is_stream(path, format) else piece_bytes
    for number, begin in enumerate(range(0, size, step)):
        yield Piece(file, path, number, begin, min(begin + step, size), piece_bytes)


def _row_groups(file: int, path: DataFile, format: Format, piece_bytes: int) -> Iterator[Piece]:
    """Pieces of consecutive row groups of at most `piece_bytes` in total. A larger row group is a separate piece."""
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
        group = metadata.row_group(begin)
        is_one = end - begin > 1 or not group.num_rows
        number += 1 if is_one else math.ceil(group.num_rows / rows_a_part(group, format, piece_bytes))
        begin = end


def bytes_of(group: pq.RowGroupMetaData, format: Format) -> int:
    """Bytes of a row group's values, plus an upper bound for the histories of its rows."""
    added = format.histories.row_bytes if format.histories else 0
    return int(group.total_byte_size) + group.num_rows * added


def rows_a_part(group: pq.RowGroupMetaData, format: Format, part_bytes: int) -> int:
    """Rows per part, for parts of about `part_bytes`, of a row group that is a separate piece."""
    num_parts = max(1, math.ceil(bytes_of(group, format) / part_bytes))
    return max(1, math.ceil(group.num_rows / num_parts))
