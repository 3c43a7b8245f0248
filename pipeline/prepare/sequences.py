"""`pipeline prepare sequences`: turns user events into examples with lists of their users' earlier events.

DuckDB sorts events and examples by user, time and position in the files, in bounded memory, and computes the row frame
of each example's history: the last N events before the first row with the same user and time. A history therefore
contains no events of the same time, and no list ever exceeds N events, even while it is built. The lists are built from
the frames part by part (`histories`), so a killed preparation loses at most the sort. A row of the log without a user,
or for which --where is not true, is no event, but may be an example. An example without a user has an empty history.
"""

from __future__ import annotations

import argparse
import re
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
from pipeline.prepare.values import Bools, keys_of
from pipeline.records import U64
from pipeline.storage.files import Files

LAST, MEMORY, LEAST_MEMORY = 50, 512 << 20, 128 << 20
"""Default length of a history; default memory for sorting; memory that DuckDB needs per thread."""
PART_FACTOR = 6
"""Upper bound of a worker's memory per byte of a part, as for text; measured: 3."""
KINDS = {"user": ("integers", "text"), "time": HOLDS["time"], "items": HOLDS["category"]}
"""Allowed kinds of values (see `files.types`) in the columns named by each option."""
Columns = Sequence[tuple[str, pa.DataType]]
NARROW = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
ROWS = 1 << 16
DONE = "done.json"
SORT = """
CREATE TABLE sorted AS
SELECT *, (sum(is_event) OVER (ROWS UNBOUNDED PRECEDING) - is_event)::BIGINT AS before
FROM (SELECT * FROM rows ORDER BY c0, c1, place)"""
"""c0: user, c1: time, c2 ...: items; place: row number over all files; before: number of events before the row."""
FRAME = f"""
SELECT greatest(of_user, of_time - {{last}}) AS begin, of_time AS end, CASE WHEN num < {{least}} THEN {LEFT_OUT}
    WHEN c0 IS NULL OR newest > 2 THEN {TRAIN} WHEN newest = 1 THEN {TEST} ELSE {VALIDATION} END::TINYINT AS "{PLACE}"
FROM (SELECT c0, place, min(before) OVER (PARTITION BY c0) AS of_user, sum(is_event) OVER (PARTITION BY c0) AS num,
        min(before) OVER (PARTITION BY c0, c1) AS of_time, row_number() OVER (
            PARTITION BY c0, place < {{num_examples}} ORDER BY c1 DESC, place DESC) AS newest FROM sorted)
WHERE place < {{num_examples}} ORDER BY place"""


LATEST = """
SELECT COLUMNS('c[0-9]+'), (SELECT count(*) FROM sorted WHERE is_event = 1 AND is_new) AS events,
    (SELECT count(*) FROM sorted WHERE is_event = 1 AND is_new
        AND c1 < (SELECT max(c1) FROM sorted WHERE is_event = 1 AND NOT is_new)) AS late
FROM (SELECT *, row_number() OVER (PARTITION BY c0 ORDER BY before DESC) AS newest FROM sorted WHERE is_event = 1)
WHERE newest <= {last} ORDER BY before"""


def with_histories(
    format: Format, args: argparse.Namespace, out: Path, examples: Sequence[DataFile], events: Sequence[DataFile],
    earlier: Sequence[DataFile] = (), latest: Path | None = None,
) -> Format:  # fmt: skip
    """Return the format of the examples with their histories. `earlier`, `latest`: see `Histories`. Raises ValueError
    if DuckDB is missing, if a column is missing or has an unsuitable type, if a time is null, or if no row is an
    event."""
    _duckdb()
    args.memory = args.memory or MEMORY
    args.workers = max(1, min(args.workers, args.memory // (PART_FACTOR * args.piece_size)))
    for name, lowest in (("last", 1), ("least", 0), ("memory", LEAST_MEMORY)):
        if (value := getattr(args, name)) is not None and value < lowest:
            raise ValueError(f"--{name} {value:,}: give at least {lowest:,}")
    names, where = list(dict.fromkeys((args.user, args.time, *args.items))), args.where or ""
    ours, theirs = (args.user, args.time), (args.user, args.examples_time or args.time)
    of_events = _types([(path, names) for path in (*earlier, *events)])
    of_both = _types([*((path, ours) for path in (*earlier, *events)), *((path, theirs) for path in examples)])
    types = [*zip(ours, of_both, strict=True), *((n, of_events[names.index(n)]) for n in args.items)]
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
    of_examples, same = tuple(zip(theirs, of_both, strict=True)), (examples, theirs) == (events, ours)
    counts = [_count(path, types[:2], where, same) for path in events]
    rows = counts if same else [_count(path, of_examples, None, True) for path in examples]
    starts = tuple(accumulate((num for num, _, _ in rows), initial=0))
    num_rows, num_chosen, num_events = (sum(numbers) for numbers in zip(*counts, strict=True))
    note = f"events: {num_events:,} of {num_rows:,} rows; {num_chosen - num_events:,} without {args.user} are skipped"
    if not num_events:
        raise ValueError(f"{events[0]}: no row is an event; {note}")
    found = Histories(
        out.absolute() / KEPT / SORTED, tuple(examples), tuple(events), tuple(types), of_examples, where, starts,
        args.last or LAST, args.least or 0, args.memory, tuple(earlier), latest,
    )  # fmt: skip
    notes = (*format.notes, *[note] * (num_events < num_rows))
    return replace(format, name="sequences", fields=(*format.fields, *fields), histories=found, notes=notes)


def _duckdb() -> Any:
    """Import DuckDB. Raises ValueError if it is not installed, or its version is untested."""
    try:
        import duckdb
    except ImportError as error:
        raise ValueError("sequences needs DuckDB: pip install 'ctr-pipeline[sequences]'") from error
    if not (1, 2) <= tuple(map(int, duckdb.__version__.split(".")[:2])) < (3, 0):
        raise ValueError(f"sequences needs DuckDB from 1.2 to below 3, and {duckdb.__version__} is installed")
    return duckdb


def _types(files: Sequence[tuple[DataFile, Sequence[str]]]) -> list[pa.DataType]:
    """Types that can represent the values of all files, by the position of their columns' names."""
    found = pa.schema([])
    for path, names in files:
        with open_file(path) as file:
            schema = file.schema_arrow
        if missing := [name for name in names if name not in schema.names]:
            raise ValueError(f"{path}: has no column {', '.join(missing)}; it has {', '.join(schema.names)}")
        kinds = [value_of(schema.field(name).type) for name in names]
        here = pa.schema([(n, NARROW.get(kind, kind)) for n, kind in zip(files[0][1], kinds, strict=True)])
        try:
            found = pa.unify_schemas([found, here], promote_options="permissive")
        except pa.ArrowException as error:
            raise ValueError(
                f"{path}: {error}, which {files[0][0]} has; write the column with one type in all files"
            ) from error
    return list(found.types)


def user_keys(paths: Sequence[DataFile], name: str) -> U64:
    """[U] sorted keys of the users in the column `name` of these files."""
    [kind] = _types([(path, (name,)) for path in paths])
    found = (users.drop_null() for _, (users,) in _read(paths, [(name, kind)], None))
    return np.unique(np.concatenate([np.empty(0, np.uint64), *(keys_of(users, name) for users in found)]))


def _count(path: DataFile, types: Columns, where: str | None, all_rows: bool) -> tuple[int, int, int]:
    """Numbers of rows, of those that `where` chooses, and of events. Raises ValueError if a chosen row, or any row if
    `all_rows`, has no time or one that is not plausible, or the type over all files cannot represent it."""
    count = chosen = num_events = 0
    for chosen_N, (users, times) in _read([path], types, where):
        used_N = chosen_N | all_rows
        no_time_N = np.asarray(pc.is_null(times, nan_is_null=True)) & used_N
        if no_time_N.any():
            row = count + int(np.argmax(no_time_N)) + 1
            raise ValueError(f"{path}: row {row:,} has no {types[1][0]}, so its history is unknown; remove such rows")
        times = pc.if_else(used_N, times.view(kind) if pa.types.is_temporal(kind := types[1][1]) else times, None)
        check_plausible(timestamps(times, None), path, count + 1, f"column {types[1][0]!r} (--time)")
        count, chosen = count + len(users), chosen + int(chosen_N.sum())
        num_events += int((chosen_N & np.asarray(users.is_valid())).sum())
    return count, chosen, num_events


def _read(paths: Sequence[DataFile], types: Columns, where: str | None) -> Iterator[tuple[Bools, list[pa.Array]]]:
    """Yield, of consecutive rows, whether `where` chooses each (None: no row, "": all), and the columns, with types for
    DuckDB: integers for times, and bytes for text, which may be invalid UTF-8."""
    base = _duckdb().connect(config={"threads": 1, "autoload_known_extensions": False}) if where else None
    for path in paths:
        with open_file(path) as file:
            known = file.schema_arrow.names
            # The names of the expression's columns are words of it; COLUMNS(...) may mean any column.
            word = r"(?i)(?<!\w)(columns|%s)(?!\w)"
            more = [n for n in known if where and re.search(word % re.escape(n.replace('"', '""')), where)]
            for batch in file.iter_batches(ROWS, columns=sorted({*more, *(n for n, _ in types)}), use_threads=False):
                columns = (batch.column(name) for name, _ in types)
                plain = (c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns)
                cast = [c.cast(kind).cast(_sorted_as(kind)) for c, (_, kind) in zip(plain, types, strict=True)]
                chosen = _chosen(base, where, path, known, batch) if where else np.full(len(batch), where is not None)
                yield chosen, cast


def _chosen(base: Any, where: str, path: DataFile, known: Sequence[str], batch: pa.RecordBatch) -> Bools:
    """[N] True for the rows for which the SQL expression is true. Raises ValueError if the text is not one expression
    of the columns `known`."""
    # With a zone, DuckDB would compare times in the zone of the machine.
    naive = [f.with_type(pa.timestamp(f.type.unit)) if pa.types.is_timestamp(f.type) else f for f in batch.schema]
    base.register("events", pa.Table.from_batches([batch]).cast(pa.schema(naive)))
    try:
        # Text that closes the parenthesis, and so could be more than an expression, does not parse without it.
        base.extract_statements(f"SELECT {where}\n")
        rows = base.sql(f"SELECT ({where}\n)::BOOLEAN FROM events")
        found = pa.RecordBatchReader.from_stream(rows).read_all()
        if found.shape != (len(batch), 1):
            raise ValueError("expected one value for each row")
    except (_duckdb().Error, pa.ArrowException, ValueError) as error:
        said = f"{path}: --where {where}: {str(error).splitlines()[0]}"
        raise ValueError(f"{said}; the columns are {', '.join(known)}") from error
    return np.asarray(pc.fill_null(found.column(0), False))


def _sorted_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return {pa.string(): pa.binary(), pa.float16(): pa.float32()}.get(kind, kind)


def sort_events(found: Histories, sources: str, threads: int, stop: threading.Event) -> bool:
    """Sort the events and compute the frame of each example, unless already done. Return False if stopped before the
    end. `sources`: checksum of the files. Raises PipelineError if DuckDB cannot sort, OSError if the disk is full."""
    duckdb, done, files = _duckdb(), found.folder / DONE, [found.folder / name for name in (ITEMS, FRAMES)]
    files += [found.latest] if found.latest else []
    if Done.is_true(done, sources, *files):
        return True
    remove(found.folder, NAMES[f"{KEPT}/{SORTED}"])
    options = {
        "memory_limit": f"{found.memory}B",
        "threads": max(1, min(threads, found.memory // LEAST_MEMORY)),
        "temp_directory": str(found.folder),
        "preserve_insertion_order": True,
    }
    columns = ((f"c{n}", _sorted_as(kind)) for n, (_, kind) in enumerate(found.types))
    schema = pa.schema([("place", pa.int64()), ("is_event", pa.int32()), ("is_new", pa.bool_()), *columns])
    num_examples, items = found.starts[-1], ", ".join(f"c{n}" for n in range(2, len(found.types)))
    try:
        with duckdb.connect(config=options) as base:
            base.register("rows", pa.RecordBatchReader.from_batches(schema, _rows(found, schema, stop)))
            base.execute(SORT)
            frames = FRAME.format(last=found.last, least=found.least, num_examples=num_examples)
            queries = (f"SELECT {items} FROM sorted WHERE is_event = 1", frames, LATEST.format(last=found.last))
            for path, query in zip(files, queries, strict=False):
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
    log, place = [(found.earlier, found.types, ""), (found.events, found.types, found.where)], 0
    same = (found.examples, found.of_examples) == (found.events, found.types[:2]) and not found.earlier
    for paths, types, where in log if same else [(found.examples, found.of_examples, None), *log]:
        for chosen_N, columns in _read(paths, types, where):
            if stop.is_set():
                return
            places = pa.array(np.arange(place, place + len(chosen_N)))
            is_event = pc.and_(pa.array(chosen_N), columns[0].is_valid())
            absent = [pa.nulls(len(places), kind) for kind in schema.types[3 + len(types) :]]
            is_new = pa.repeat(paths is found.events, len(places))
            rows = pa.record_batch([places, is_event.cast(pa.int32()), is_new, *columns, *absent], schema)
            yield rows if same or where is None else rows.filter(is_event)
            place += len(places)
