"""Work described by a command line, validated as far as possible before the sources are read."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.files.find import DataFile, check_once, find, matches_name, natural_order
from pipeline.prepare import formats
from pipeline.prepare.arguments import TAKES
from pipeline.prepare.formats import Format
from pipeline.prepare.heads import check_heads, has_rows, names_in
from pipeline.prepare.manifest import Command, command_of
from pipeline.prepare.schema import DAYS
from pipeline.prepare.sequences import with_histories
from pipeline.prepare.splits import ByTime, Last, ToScore, check_split, parse
from pipeline.prepare.steps import Job
from pipeline.prepare.stretches import Piece, cut_sources, first_line

NOT_OF_OUTPUT = ("out", "into", "keep_days", "sources", "examples", "workers", "memory", "fresh")
"""Options that do not affect the output's bytes, or are recorded elsewhere."""

OF_SEQUENCES = ("user", "time", "items", "last", "least", "where", "examples_time")
"""Options recorded only for sequences."""
NEEDED = dict.fromkeys(("schema", "fields"), "the columns to make") | dict.fromkeys(OF_SEQUENCES[:3], "columns")
"""Required options of the formats that take them -> what each option names."""


def plan_preparation(
    args: argparse.Namespace, out: Path, earlier: Sequence[DataFile] = (), latest: Path | None = None
) -> tuple[Job, list[Piece], Command]:
    """Return the job, its pieces, and the command, which determines the output. `earlier`, `latest`: see `Histories`.
    Raises ValueError if the arguments conflict with each other or with the sources."""
    if args.workers < 1:
        raise ValueError(f"--workers {args.workers}: give at least 1")
    if args.skip_bad is not None and not 0 <= args.skip_bad <= 1:
        raise ValueError(f"--skip-bad {args.skip_bad}: give a share of the lines, from 0 to 1")
    parquet = args.format in ("parquet", "sequences")
    form = "Parquet" if parquet else {"json": "JSON"}.get(args.format, "text")
    found, log = (sources_of(sources, form)[0] for sources in (args.examples or args.sources, args.sources))
    paths, events = ([p for p in ps if has_rows(p, None)] or ps if parquet else ps for ps in (found, log))
    format, split = format_of(args, paths), ToScore() if args.no_label else parse(args.split)
    if args.no_label and args.split:
        raise ValueError("--no-label: rows to be scored are not split; leave out --split")
    if args.format == "sequences":
        format = with_histories(format, args, out, paths, events, earlier, latest)
    elif isinstance(split, Last):
        raise ValueError(f"--split last: {args.format} has no users with times; only sequences has")
    if not parquet:
        paths = [path for path in found if has_rows(path, format)] or found
    check_heads(paths, format)
    format = in_order_of(paths[0], format)
    if format.kind == "libsvm" and any(b"qid:" in first_line(path).partition(b"#")[0] for path in paths):
        format = dataclasses.replace(format, fields=(*format.fields, formats.QUERY))
    if isinstance(split, ByTime):
        forms = {field.name: field.form for field in format.fields if field.form in DAYS}
        split = dataclasses.replace(split, form=forms.get(split.column, ""))
    check_split(split, format.schema, paths)
    job = Job(out.absolute(), format, split, args.skip_bad)
    others = NOT_OF_OUTPUT if args.format == "sequences" else (*NOT_OF_OUTPUT, *OF_SEQUENCES)
    options = {name: value for name, value in sorted(vars(args).items()) if name not in others}
    options |= described(format)
    sources = list(dict.fromkeys((*paths, *events))) if args.examples else paths
    return job, cut_sources(paths, format, args.piece_size), command_of(options, sources)


def sources_of(sources: Sequence[str], form: str = "") -> tuple[list[DataFile], list[DataFile]]:
    """Return the source files, ordered by name, and the other files in their folders. Raises ValueError if a source has
    no files, or a file is named twice. `form`: see `find`."""
    found = find(sources, form=form)
    check_once({"": found.files})
    # A shell expands a pattern to names in lexicographic order.
    return sorted(found.files, key=natural_order) if len(sources) > 1 else [*found.files], [*found.left_out]


def check_options(args: argparse.Namespace) -> None:
    """Raises ValueError if an option does not apply to the format, or one that it needs is missing."""
    takes = TAKES[args.format]
    for name in sorted({name for names in TAKES.values() for name in names}):
        if getattr(args, name) and name not in takes:
            raise ValueError(f"--{name.replace('_', '-')} does not apply to {args.format}; leave it out")
        if not getattr(args, name) and name in takes and name in NEEDED:
            raise ValueError(f"{args.format} needs --{name}, which names {NEEDED[name]}")


def format_of(args: argparse.Namespace, paths: Sequence[DataFile]) -> Format:
    check_options(args)
    match args.format:
        case "parquet" | "sequences":
            return formats.parquet_format(args.schema, paths, args.no_label)
        case "libsvm":
            return formats.libsvm(args.numbers, args.ignore_values)
        case "libffm":
            return formats.libffm(args.fields, args.many, args.numbers, args.ignore_values)
        case "criteo" | "avazu":
            found = formats.criteo() if args.format == "criteo" else formats.avazu()
        case _:
            is_file = len(args.schema) == 1 and ":" not in args.schema[0]
            schema = Path(args.schema[0]) if is_file else args.schema
            found = formats.csv(schema, "json" if args.format == "json" else "text")
    for pattern in args.no_header:
        if not any(matches_name(path, pattern) for path in paths):
            raise ValueError(f"--no-header {pattern}: matches none of the sources")
    found = dataclasses.replace(found, headerless=tuple(args.no_header))
    return formats.without_labels(found) if args.no_label else found


def in_order_of(path: DataFile, format: Format) -> Format:
    """Return the format with its columns in the order of a file's header, if every file has a header. A file without a
    header has the schema's order."""
    if format.kind != "text" or not format.header or format.headerless:
        return format
    names = names_in(path, format)
    # Derived columns do not occur in lines, and stay last.
    at = {name: number for number, name in enumerate(names)}
    return dataclasses.replace(format, fields=tuple(sorted(format.fields, key=lambda f: at.get(f.name, len(at)))))


def described(format: Format) -> dict[str, Any]:
    """Return the whole format as JSON values. It is recorded because a schema file may change later."""
    columns = [
        f"{f.name}:{f.role}:{'/'.join(f.values) if f.values else f.arrow_type}"
        + "".join(f":{more}" for more in (f.form, *f.nulls) if more)
        for f in format.fields
    ]
    options = {f"read.{f.name}": getattr(format, f.name) for f in dataclasses.fields(format)}
    # `backslashes` is recorded only if set: an absent option counts as not given.
    for name in ("headerless", "left_out", "notes", "histories", *(() if format.backslashes else ("backslashes",))):
        del options[f"read.{name}"]
    return options | {"read.fields": columns}
