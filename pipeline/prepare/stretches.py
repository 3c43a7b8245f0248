"""Pieces of input, each processed by one task (a byte range of a text file, a compressed file, or row groups of a
Parquet file), and the text of each part of a piece: whole lines of the range, or the next lines of a stream."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.stores import open_bytes, open_to_read, stamp_of
from pipeline.messages.sizes import format_size_down
from pipeline.messages.uris import is_remote
from pipeline.prepare.formats import Format
from pipeline.prepare.lines import Text
from pipeline.prepare.text import BOM, LONGEST_LINE, quotes_in, with_doubled_quotes

BLANKS = 1 << 12
"""Number of bytes at the end of a file in which blank lines are ignored, since editors leave them there."""

COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
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


@dataclass
class Stretch:
    number: int
    text: Text
    last: bool
    """True if the file has no later part."""
    first_line: Callable[[], int]
    """Returns the number of the text's first line in the file, from 1. For a byte range it counts the preceding lines
    of the file."""
    end: int = 0
    """Bytes of the file read up to the text's end, if it is a stream."""

    def line_at(self, at: int) -> int:
        """Number in the file of the line that starts at this offset of the text."""
        return self.first_line() + self.text.count(b"\n", 0, at)


def stretches(piece: Piece, format: Format) -> Iterator[Stretch]:
    """Yield the piece's text, part by part, without the header. Raises ValueError if a line is too long or a stream is
    truncated."""
    for stretch in _of_stream(piece, format) if is_stream(piece.path, format) else [_of_range(piece, format)]:
        if format.backslashes:
            stretch.text = with_doubled_quotes(stretch.text, format.delimiter)
        yield stretch


def open_text(path: DataFile) -> tuple[io.BufferedReader, Callable[[], int]]:
    """Open a file's text, decompressed according to its suffix. Return the text stream, and a function that returns the
    number of bytes read from the file."""
    codec = codec_of(path)
    place = str(path)
    local: Any = pa.OSFile if codec else io.FileIO
    source: Any = open_to_read(place) if is_remote(place) else local(place)
    # All concatenated members, frames or streams are read; a truncated one raises OSError.
    raw: Any = pa.CompressedInputStream(source, codec) if codec else source
    return io.BufferedReader(raw, LONGEST_LINE), source.tell


def first_lines(path: DataFile, count: int) -> list[bytes]:
    """First lines of a file, with newlines, without the byte order mark. Lines after the end of the file are empty."""
    with open_text(path)[0] as file, _naming_damage(path, lambda: 1):
        first, *others = (_line(file, path, lambda: 1) for _ in range(count))
    return [first.removeprefix(BOM), *others]


def first_line(path: DataFile) -> bytes:
    """First line of a file, without newline and byte order mark."""
    return first_lines(path, 1)[0].rstrip(b"\r\n")


@contextmanager
def _naming_damage(path: DataFile, line: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if codec_of(path) is None:
            raise
        raise ValueError(f"{path} is cut off or damaged after line {line():,} ({error}); is it complete?") from error


def _line(file: io.BufferedReader, path: DataFile, number: Callable[[], int]) -> bytes:
    """Rest of a line, with its newline; the last line of a file may have none. Raises ValueError if it is too long."""
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ValueError(
            f"{path}: line {number():,} is longer than {format_size_down(LONGEST_LINE)}; is this a text file?"
        )
    return line


def _of_range(piece: Piece, format: Format) -> Stretch:
    """Lines that start after `begin` and not after `end` (see `Piece`)."""
    path = piece.path

    def line_at(offset: int) -> int:
        return _newlines_before(path, offset) + 1

    with open_bytes(str(path)) as file:
        file.seek(piece.begin)
        if piece.begin or format.has_header(path):
            _line(file, path, lambda: line_at(piece.begin))
        elif file.read(len(BOM)) != BOM:
            file.seek(0)
        begin, size = file.tell(), stamp_of(str(path)).size
        last = piece.end >= size
        if piece.end > size - BLANKS:
            file.seek(max(0, size - BLANKS))
            size -= _blank_at_end(file.read())
        _check_lines(path, begin < size or piece.begin > 0)
        file.seek(piece.end)
        end = min(max(begin, piece.end + len(_line(file, path, lambda: line_at(piece.end)))), max(begin, size))
        file.seek(begin)
        text = file.read(end - begin)
    return Stretch(piece.number, text, last, lambda: line_at(begin))


def _check_lines(path: DataFile, some: bool) -> None:
    if not some:
        raise ValueError(f"{path}: has no lines; is it complete? Leave it out if it should be empty")


def _blank_at_end(text: Text) -> int:
    """Number of bytes in the trailing blank lines of a text."""
    lines = text.rstrip(b"\r\n")
    first = text.find(b"\n", len(lines)) + 1 if lines else 0
    return len(text) - first if first or not lines else 0


def _newlines_before(path: DataFile, offset: int) -> int:
    count = 0
    with open_bytes(str(path)) as file:
        while block := file.read(min(LONGEST_LINE, offset - file.tell())):
            count += block.count(b"\n")
    return count


def _of_stream(piece: Piece, format: Format) -> Iterator[Stretch]:
    path, number, line = piece.path, piece.number, 1
    file, place = open_text(path)
    with file, _naming_damage(path, lambda: line):
        if format.has_header(path):
            line += _line(file, path, lambda: 1).count(b"\n")
        last = not file.peek(1)
        _check_lines(path, not last)
        while not last:
            text = _next_part(file, piece, format, line)
            if not (ahead := file.peek(1)).strip(b"\r\n"):
                text += file.read(len(ahead))
            if last := not file.peek(1):
                del text[len(text) - _blank_at_end(text) :]
            if number == 0 and not format.has_header(path) and text.startswith(BOM):
                del text[: len(BOM)]
            stretch = Stretch(number, text, last, partial(int, line), place())
            number, line = number + 1, line + text.count(b"\n")
            # Drop this reference, so that the consumer can free the text before the next one is read.
            del text
            yield stretch


def _next_part(file: io.BufferedReader, piece: Piece, format: Format, line: int) -> bytearray:
    """Read the next `part_bytes` bytes and the rest of their last line; if values may contain newlines, continue to the
    end of the last quoted value."""
    text = bytearray(piece.part_bytes)
    del text[file.readinto(text) :]
    size = len(text)

    def number() -> int:
        return line + text.count(b"\n")

    text += _line(file, piece.path, number)
    open_quote = format.newlines and quotes_in(text, format) % 2
    while open_quote and (rest := _line(file, piece.path, number)):
        text += rest
        open_quote ^= quotes_in(rest, format) % 2
        if len(text) - size > LONGEST_LINE:
            since = line + text.count(b"\n", 0, size)
            raise ValueError(
                f"{piece.path}: a value in quotes, begun in line {since:,} or before, "
                f"does not end within {format_size_down(LONGEST_LINE)}; correct it, or set newlines = false"
            )
    return text
