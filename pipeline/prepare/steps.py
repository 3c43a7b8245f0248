"""The work of a task on one piece: read its parts, make the step's result of each, then write its record.

Step `count`, only if there are vocabularies, saves the rows of parts, and the counts of values in those for training;
then step `write`, which makes the output, reads what was saved instead of the sources. So sources are read once, and
both steps need only the distinct values of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.types import is_list
from pipeline.prepare.counts import in_dictionary
from pipeline.prepare.formats import Format
from pipeline.prepare.layout import COUNT, COUNTS, KEPT, WRITE
from pipeline.prepare.lines import BadLines
from pipeline.prepare.parts import Made, Record, Records, limits, part_name, write_splits
from pipeline.prepare.pieces import Piece
from pipeline.prepare.read import SourcePart, parts
from pipeline.prepare.splits import I8, TRAIN, ByTime, Split
from pipeline.prepare.times import micros_of
from pipeline.prepare.vocabulary import CACHE_BYTES, Vocabulary, count_part, path_of
from pipeline.storage.durable import checksum_so_far, replacing
from pipeline.storage.files import Files, checksum

ROWS = pa.ipc.IpcWriteOptions(compression="lz4")
"""Form of saved rows. Criteo's layout takes 0.4 of the text's bytes, 0.7 without compression, 0.25 with zstd in twice
the time."""


@dataclass(frozen=True)
class Job:
    """All that a task needs to know."""

    out: Path
    format: Format
    split: Split
    bad: BadLines
    vocabulary: Mapping[str, int]
    """Columns whose values become ids, and how often a value of each must occur for that."""
    stop: Event = field(default_factory=Event, compare=False)
    """Set to have tasks end after the part that they are working on."""

    @property
    def kept(self) -> Path:
        return self.out / KEPT

    def records(self, step: str) -> Records:
        return Records(self.kept / step)

    def rows_of(self, part: str) -> Path:
        """Path of a part's saved rows."""
        return self.kept / COUNTS / f"{part}.rows"

    def of_role(self, role: str) -> list[str]:
        """Names of the columns of this role, in the order of the format."""
        return [field.name for field in self.format.fields if field.role == role]


def do_piece(job: Job, step: str, piece: Piece) -> None:
    """Make the parts of the piece that are not done. Other threads may make those of other pieces meanwhile."""
    records = job.records(step)
    made = Made(records, piece.file)
    is_saved = job.vocabulary and step == WRITE
    try:
        if job.stop.is_set():
            return
        for part in _saved_part(job, piece, made) if is_saved else parts(piece, job.format, job.bad, made):
            if part.number not in made:
                split_N = job.split.of(part.file, part.number, piece.path, part.table)
                part.table = part.table.select(job.format.schema.names)
                result = (_count if step == COUNT else _write)(job, part, split_N)
                of_part = {name: getattr(part, name) for name in ("file", "number", "last", "end")}
                records.write(Record(**of_part, lines=part.num_lines, skipped=part.num_skipped, **result))
            # Its memory is for the next part.
            del part
            if job.stop.is_set():
                return
    except BaseException:
        # Without it tasks that run at the same time might go on for hours, if a source is read as a stream.
        job.stop.set()
        raise


def _count(job: Job, part: SourcePart, split_N: I8) -> dict[str, Any]:
    """Save the rows and the counts of a part; return fields of its record."""
    for name in job.vocabulary:
        if not is_list(part.table.schema.field(name).type):
            column = in_dictionary(part.table.column(name))
            part.table = part.table.set_column(part.table.column_names.index(name), name, column)
    rows = part.table.select([*job.vocabulary]).filter(pa.array(split_N == TRAIN))
    name = part_name(part.file, part.number)
    kept = count_part(rows, job.kept / COUNTS, name)
    with replacing(job.rows_of(name)) as file:
        with pa.ipc.new_stream(file, part.table.schema, options=ROWS) as writer:
            writer.write_table(part.table.combine_chunks())
        return {"kept": kept, "rows": checksum_so_far(file), "numbers": {}, "unknown": {}}


def saved_pieces(pieces: Sequence[Piece], records: Records) -> list[Piece]:
    """A piece for each part of the sources with a record, whose range is that of its lines."""
    paths = {piece.file: piece.path for piece in pieces}
    return [Piece(record.file, paths[record.file], record.number, 0, record.lines, 0) for record in records]


def _saved_part(job: Job, piece: Piece, made: Made) -> Iterator[SourcePart]:
    """The piece's one part, from its saved rows, unless it is in `made`. The rows are removed when the consumer asks
    for the next part, so this one must be made by then. Raises ValueError if they are not as they were saved."""
    name = part_name(piece.file, piece.number)
    path = job.rows_of(name)
    if piece.number not in made:
        record = job.records(COUNT).read(name)
        content = path.read_bytes()
        if checksum(content) != record.rows:
            raise ValueError(f"{path} is damaged; the same command makes it again")
        table = pa.ipc.open_stream(content).read_all()
        yield SourcePart(record.file, record.number, table, record.lines, record.skipped, record.last)
    with suppress(FileNotFoundError):
        Files().remove(path)


def _write(job: Job, part: SourcePart, split_N: I8) -> dict[str, Any]:
    """Write the output's files of a part; return fields of its record."""
    times = _times(part.table, job.split) if isinstance(job.split, ByTime) else None
    table, unknown = _with_ids(job, part.table)
    name = part_name(part.file, part.number)
    files = write_splits(job.out, name, table, split_N, job.of_role("label"), times)
    return {"numbers": limits(part.table, job.of_role("number")), "files": files, "unknown": unknown}


def _times(table: pa.Table, split: ByTime) -> pa.ChunkedArray:
    """Column of a split by time, as it was read; texts that are not in the order of the time they mean as ISO 8601."""
    times = table.column(split.column)
    if split.form in ("", "iso"):
        return times
    moments = micros_of(times, split.form).cast(pa.timestamp("us"))
    return pa.chunked_array([moments.cast(pa.timestamp("s"), safe=False).cast(pa.string())])


def _with_ids(job: Job, table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """The table with the ids of vocabularies, and the number of ids 0 by column."""
    unknown = {}
    for column in job.vocabulary:
        path = path_of(job.out, column)
        known = _vocabulary(path, column, path.stat().st_mtime_ns, CACHE_BYTES // len(job.vocabulary))
        ids = known.look_up(table.column(column))
        table = table.set_column(table.column_names.index(column), column, ids)
        unknown[column] = pc.sum(pc.equal(ids.flatten() if is_list(ids.type) else ids, 0)).as_py() or 0
    return table, unknown


@lru_cache(64)
def _vocabulary(path: Path, column: str, made_at: int, cache_bytes: int) -> Vocabulary:
    """Open a vocabulary once per process; `made_at` distinguishes it from an earlier one at the same path."""
    return Vocabulary(path, column, cache_bytes)
