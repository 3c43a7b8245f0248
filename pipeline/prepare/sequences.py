"""`pipeline prepare sequences`: turns user events into examples with lists of their users' earlier events.

DuckDB sorts events and examples by user, time and position in the files, in bounded memory, and computes the row frame
of each example's history: the last N events before the first row with the same user and time. A history therefore
contains no events of the same time, and no list ever exceeds N events, even while it is built. The lists are built from
the frames part by part (`histories`), so a killed preparation loses at most the sort.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import PipelineError
from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.plausible import check_plausible, timestamps
from pipeline.files.types import HOLDS, kind_of, value_of
from pipeline.prepare.formats import Field, Format
from pipeline.prepare.histories import FRAMES, ITEMS, LEFT_OUT, PLACE, PREFIX, Histories
from pipeline.prepare.layout import KEPT, NAMES, SORTED, remove
from pipeline.prepare.parts import Done
from pipeline.prepare.splits import TEST, TRAIN, VALIDATION
from pipeline.storage.files import Files

LAST, MEMORY, LEAST_MEMORY = 50, 512 << 20, 128 << 20
"""Default length of a history; default memory for sorting; memory that DuckDB needs per thread."""
PART_FACTOR = 6
"""Upper bound of a worker's memory per byte of a part, as for text; measured: 3."""
KINDS = {"user": ("integers", "text"), "time": HOLDS["time"], "items": HOLDS["category"]}
"""Allowed kinds of values (see `files.types`) in the columns named by each option."""
NARROW = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
ROWS = 1 << 16
DONE = "done.json"
SORT = """
CREATE TABLE sorted AS
SELECT *, (sum(is_event) OVER (ROWS UNBOUNDED PRECEDING) - is_event)::BIGINT AS before
FROM (SELECT *, (place >= {first_event})::INT AS is_event FROM rows ORDER BY c0, c1, place)"""
"""c0: user, c1: time, c2 ...: items; place: row number over all files; before: number of events before the row."""
FRAME = f"""
SELECT greatest(of_user, of_time - {{last}}) AS begin, of_time AS end, CASE WHEN num < {{least}} THEN {LEFT_OUT}
    WHEN newest = 1 THEN {TEST} WHEN newest = 2 THEN {VALIDATION} ELSE {TRAIN} END::TINYINT AS "{PLACE}"
FROM (SELECT place, min(before) OVER (PARTITION BY c0) AS of_user, min(before) OVER (PARTITION BY c0, c1) AS of_time,
        sum(is_event) OVER (PARTITION BY c0) AS num, row_number() OVER (
            PARTITION BY c0, place < {{num_examples}} ORDER BY c1 DESC, place DESC) AS newest FROM sorted)
WHERE place < {{num_examples}} ORDER BY place"""


def with_histories(
    format: Format, args: argparse.Namespace, out: Path, examples: Sequence[DataFile], events: Sequence[DataFile]
) -> Format:
    """Return the format of the examples with their histories. Raises ValueError if DuckDB is missing, if a column is
    missing or has an unsuitable type, or if a user or time is null."""
    _duckdb()
    args.memory = args.memory or MEMORY
    args.workers = max(1, min(args.workers, args.memory // (PART_FACTOR * args.piece_size)))
    for name, lowest in (("last", 1), ("least", 0), ("memory", LEAST_MEMORY)):
        if (value := getattr(args, name)) is not None and value < lowest:
            raise ValueError(f"--{name} {value:,}: give at least {lowest:,}")
    names = list(dict.fromkeys((args.user, args.time, *args.items)))
    of_events, of_both = _types(events, names), _types([*events, *examples], names[:2])
    types = [*zip((args.user, args.time), of_both, strict=True), *((n, of_events[names.index(n)]) for n in args.items)]
    for option, (name, kind) in zip(("user", "time", *["items"] * len(args.items)), types, strict=True):
        # Times of day and durations can be ordered, although no other command reads them.
        is_clock = option == "time" and (pa.types.is_time(kind) or pa.types.is_duration(kind))
        is_truth = option == "time" and pa.types.is_boolean(kind)
        if is_truth or not (is_clock or kind_of(kind) in KINDS[option]):
            *several, last = KINDS[option]
            expected = f"{', '.join(several)} or {last}"
            raise ValueError(f"--{option} {name}: has type {kind} in {events[0]}, expected {expected}")
    fields = [
        Field(f"{PREFIX}{n}", "list" if kind_of(k) == "numbers" else "category", k, many=True, history=n)
        for n, k in types[2:]
    ]
    lists = [field.name for field in fields]
    if twice := sorted({n for n in lists if lists.count(n) + format.schema.names.count(n) > 1}):
        raise ValueError(f"--items: there would be two columns {', '.join(twice)}; leave one out, or rename it")
    rows = {path: _count(path, types[:2]) for path in dict.fromkeys((*events, *examples))}
    starts = tuple(accumulate((rows[path] for path in examples), initial=0))
    folder = out.absolute() / KEPT / SORTED
    files = tuple(examples), tuple(events)
    found = Histories(folder, *files, tuple(types), starts, args.last or LAST, args.least or 0, args.memory)
    return replace(format, name="sequences", fields=(*format.fields, *fields), histories=found)


def _duckdb() -> Any:
    """Import DuckDB. Raises ValueError if it is not installed, or its version is untested."""
    try:
        import duckdb
    except ImportError as error:
        raise ValueError("sequences needs DuckDB: pip install 'ctr-pipeline[sequences]'") from error
    if not (1, 2) <= tuple(map(int, duckdb.__version__.split(".")[:2])) < (3, 0):
        raise ValueError(f"sequences needs DuckDB from 1.2 to below 3, and {duckdb.__version__} is installed")
    return duckdb


def _types(paths: Sequence[DataFile], names: Sequence[str]) -> list[pa.DataType]:
    """Column types that can represent the values of all files."""
    found = pa.schema([])
    for path in paths:
        with open_file(path) as file:
            schema = file.schema_arrow
        if missing := [name for name in names if name not in schema.names]:
            raise ValueError(f"{path}: has no column {', '.join(missing)}; it has {', '.join(schema.names)}")
        kinds = [value_of(schema.field(name).type) for name in names]
        here = pa.schema([(n, NARROW.get(kind, kind)) for n, kind in zip(names, kinds, strict=True)])
        try:
            found = pa.unify_schemas([found, here], promote_options="permissive")
        except pa.ArrowException as error:
            raise ValueError(
                f"{path}: {error}, which {paths[0]} has; write the column with one type in all files"
            ) from error
    return list(found.types)


def _count(path: DataFile, types: Sequence[tuple[str, pa.DataType]]) -> int:
    """Number of rows. Raises ValueError if a user or time is null, a time is not plausible, or the type over all
    files cannot represent it."""
    count = 0
    for columns in _read([path], types):
        for (name, _), column in zip(types, columns, strict=True):
            empty_N = np.asarray(pc.is_null(column, nan_is_null=True))
            if empty_N.any():
                row = count + int(np.argmax(empty_N)) + 1
                raise ValueError(f"{path}: row {row:,} has no {name}, so its history is unknown; remove such rows")
        times = columns[1].view(kind) if pa.types.is_temporal(kind := types[1][1]) else columns[1]
        check_plausible(timestamps(times, None), path, count + 1, f"column {types[1][0]!r} (--time)")
        count += len(columns[0])
    return count


def _read(paths: Sequence[DataFile], types: Sequence[tuple[str, pa.DataType]]) -> Iterator[list[pa.Array]]:
    """Yield the columns of consecutive rows, with types for DuckDB: integers for times, and bytes for text, which may
    be invalid UTF-8."""
    for path in paths:
        with open_file(path) as file:
            for batch in file.iter_batches(ROWS, columns=sorted({name for name, _ in types}), use_threads=False):
                columns = (batch.column(name) for name, _ in types)
                plain = (c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns)
                yield [c.cast(kind).cast(_sorted_as(kind)) for c, (_, kind) in zip(plain, types, strict=True)]


def _sorted_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return {pa.string(): pa.binary(), pa.float16(): pa.float32()}.get(kind, kind)


def sort_events(found: Histories, sources: str, threads: int, stop: threading.Event) -> bool:
    """Sort the events and compute the frame of each example, unless already done. Return False if stopped before the
    end. `sources`: checksum of the files. Raises PipelineError if DuckDB cannot sort, OSError if the disk is full."""
    duckdb, done, files = _duckdb(), found.folder / DONE, [found.folder / name for name in (ITEMS, FRAMES)]
    if Done.is_true(done, sources, *files):
        return True
    remove(found.folder, NAMES[f"{KEPT}/{SORTED}"])
    options = {
        "memory_limit": f"{found.memory}B",
        "threads": max(1, min(threads, found.memory // LEAST_MEMORY)),
        "temp_directory": str(found.folder),
        "preserve_insertion_order": True,
    }
    schema = pa.schema([("place", pa.int64()), *((f"c{n}", _sorted_as(k)) for n, (_, k) in enumerate(found.types))])
    num_examples, items = found.starts[-1], ", ".join(f"c{n}" for n in range(2, len(found.types)))
    first_event = 0 if found.examples == found.events else num_examples
    try:
        with duckdb.connect(config=options) as base:
            base.register("rows", pa.RecordBatchReader.from_batches(schema, _rows(found, schema, stop)))
            base.execute(SORT.format(first_event=first_event))
            frames = FRAME.format(last=found.last, least=found.least, num_examples=num_examples)
            for path, query in zip(files, (f"SELECT {items} FROM sorted WHERE is_event = 1", frames), strict=True):
                rows = pa.RecordBatchReader.from_stream(base.sql(query))
                with open(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                    for batch in rows:
                        if stop.is_set():
                            return False
                        writer.write_batch(batch)
                    writer.close()
                    file.flush()
                    Files.system.fsync(file.fileno())
    except (duckdb.Error, pa.ArrowException) as error:
        raise PipelineError(
            f"DuckDB: {str(error).splitlines()[0]} Give a larger --memory (it is {found.memory >> 20} MiB), or make "
            f"room in {found.folder} ({disk_usage(found.folder).free >> 20:,} MiB are free)"
        ) from error
    Done.write(done, sources, *files)
    return True


def _rows(found: Histories, schema: pa.Schema, stop: threading.Event) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the examples, without items, then of the events; only the events if they are the examples."""
    place = 0
    others = [] if found.examples == found.events else [(found.examples, found.types[:2])]
    for paths, types in (*others, (found.events, found.types)):
        for columns in _read(paths, types):
            if stop.is_set():
                return
            places = pa.array(np.arange(place, place + len(columns[0])))
            absent = [pa.nulls(len(places), kind) for kind in schema.types[1 + len(types) :]]
            yield pa.record_batch([places, *columns, *absent], schema)
            place += len(places)
