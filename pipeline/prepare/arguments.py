"""Arguments of `prepare`. Help covers one format, since options differ between formats."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.arguments import add_fresh, add_workers, size_argument
from pipeline.machine.limits import cpus

KINDS = {
    "criteo": "tab-separated lines without a header: label, 13 numbers, 26 categories (Criteo, 2014 and 1 TB)",
    "avazu": "CSV with a header (Avazu, 2015); columns for hour of day, weekday and weekend are added",
    "csv": "any delimited text; --schema names its columns",
    "json": "JSON objects, one per line; --schema names the fields to keep, with dots for those of inner objects",
    "libsvm": "lines `label index:value ...`, with qid:number after the label or not",
    "libffm": "lines `label field:index:value ...`; --fields names those that become columns, null where absent",
    "parquet": "Parquet files; --schema names the columns to keep",
    "sequences": "Parquet files of events (convert text first); each row gets lists of its user's earlier events",
}
"""One-line description of each format."""
OF_SEQUENCES = ("last", "least", "where")
TAKES = {
    "criteo": ("no_label",),
    "avazu": ("no_label",),
    "csv": ("schema", "no_header", "no_label"),
    "json": ("schema", "no_label"),
    "libsvm": ("numbers", "ignore_values"),
    "libffm": ("fields", "many", "numbers", "ignore_values"),
    "parquet": ("schema", "no_label"),
    "sequences": (
        "schema", "user", "time", "items", *OF_SEQUENCES, "examples", "examples_time", "memory", "no_label", "into",
        "keep_days",
    ),
}  # fmt: skip
"""Additional options of each format. `schema`, `fields`, `user`, `time` and `items` are required, the others
optional."""
SCHEMA = {
    "csv": "a JSON or TOML file, or NAME:ROLE[:TYPE] of each column in order. Roles: label, number, category, time, "
    "skip; for a label whose values are not 0 and 1, NAME:label:no/yes",
    "json": "a JSON or TOML file, or NAME:ROLE[:TYPE] of each field. Roles: label, number, category, time",
    "parquet": "NAME:ROLE, where NAME may be a pattern. Roles: label, number, category, time",
}
SCHEMA["sequences"] = f"columns of the examples that are kept, next to their histories: {SCHEMA['parquet']}"
SPLIT = (
    "ratio:validation=0.1,test=0.1,seed=0, or time:COLUMN,validation_from=VALUE,test_from=VALUE, or "
    "file:validation=PATTERN,test=PATTERN; ratio with user=COLUMN keeps rows with the same COLUMN together; for "
    "sequences also `last`: each user's last example is for test, the one before it for validation (default: all rows "
    "are for training)"
)
OUT = (
    "folder for the output: Parquet files in train, validation and test; _workflow.py, which trains on them, and "
    "_statistics.json for it; _prepared.json, a description; .prepare, from which a killed preparation resumes"
)
PROG = "pipeline prepare"
EPILOG = (
    f"{PROG} FORMAT --help shows the options of a format. {PROG} statistics WORKFLOW computes the means, edges and "
    "counts that the workflow's features need."
)


def statistics_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROG} statistics", allow_abbrev=False,
        description="Compute the statistics of the training data that the features of a workflow need.",
    )  # fmt: skip
    parser.add_argument("workflow", type=Path, metavar="WORKFLOW", help="the workflow's file")
    return parser


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Help and usage describe its format, or list all formats if it names none."""
    return prepare_arguments(next((word for word in argv if word in TAKES), None)).parse_args(argv)


def prepare_arguments(format: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that accepts the options of all formats. Its help shows those of `format`, or the list of formats
    if it is None."""
    lines = "\n".join(f"  {name:9} {what}" for name, what in KINDS.items())
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} {format or 'FORMAT'} SOURCE... --out DIR [OPTION...]",
        description=f"{format}: {KINDS[format]}."
        if format
        else f"Make Parquet files from raw logs.\n\nformats:\n{lines}",
        epilog=None if format else EPILOG,
        formatter_class=argparse.HelpFormatter if format else argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    of_a_format = {name for names in TAKES.values() for name in names}

    def add(name: str, **options: Any) -> None:
        given = name.removeprefix("--").replace("-", "_")
        if format is None or (given in of_a_format and given not in TAKES[format]):
            options["help"] = argparse.SUPPRESS
        parser.add_argument(name, **options)

    add("format", choices=TAKES, metavar="FORMAT", help=argparse.SUPPRESS)
    num_sources = "*" if format == "sequences" else "+"
    add("sources", nargs=num_sources, metavar="SOURCE", help="files, folders or patterns; .gz, .zst and .bz2 are read")
    add("--out", type=Path, required=format != "sequences", metavar="DIR", help=OUT)
    add("--schema", nargs="+", default=[], metavar="COLUMN", help=SCHEMA.get(format or ""))
    add("--no-header", nargs="+", default=[], metavar="PATTERN", help="these sources have no header, others have one")
    add("--fields", nargs="+", type=int, default=[], metavar="N", help="fields that become columns")
    add("--many", nargs="+", type=int, default=[], metavar="N", help="fields with several indices in a line")
    add("--numbers", nargs="+", type=int, default=[], metavar="N", help="indices (fields) whose values become columns")
    add("--ignore-values", action="store_true", help="ignore values other than 1")
    add("--user", metavar="COLUMN", help="the column of events and examples that names the user")
    add("--time", metavar="COLUMN", help="their column of times; a history has the events before this time")
    add("--where", metavar="SQL", help="rows of the events in histories, an SQL expression such as event = 'click'")
    add("--items", nargs="+", default=[], metavar="COLUMN", help="columns of the events; hist_COLUMN has their values")
    add("--last", type=int, metavar="N", help="maximum number of events in a history: the latest ones (default: 50)")
    add("--least", type=int, metavar="N", help="leave out the examples of users with fewer than N events")
    add("--examples", nargs="+", default=[], metavar="FILE", help="files of examples (default: the events themselves)")
    add("--examples-time", metavar="COLUMN", help="the column of times of --examples, if not that of the events")
    add("--into", type=Path, metavar="DIR", help="in place of --out: make the days that --examples names, one by one")
    add("--keep-days", type=int, metavar="N", help="days that can be made again after later ones (default: 3)")
    add("--memory", type=size_argument, metavar="SIZE", help="memory for sorting events (default: 512 MiB)")
    add("--no-label", action="store_true", help="rows to score: leave out labels, and put all rows into test/")
    add("--split", metavar="HOW", help=SPLIT)
    add("--skip-bad", type=float, metavar="SHARE", help="leave out bad lines, up to this share (default: 0)")
    piece = "32 MiB" if format == "sequences" else "64 MiB"
    what = "lists" if format == "sequences" else "text"
    add("--piece-size", type=size_argument, default=piece, metavar="SIZE", help=f"{what} per part (default: {piece})")
    add_workers(parser, "number of parts made in parallel (default: one per CPU)", cpus())
    add_fresh(parser, "what is in DIR")
    return parser
