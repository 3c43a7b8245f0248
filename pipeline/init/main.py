"""pipeline init DATA... --out FILE: look at Parquet or CSV files, and write a workflow for them."""

from __future__ import annotations

import argparse
import functools
import glob
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pipeline.arguments import init_arguments
from pipeline.errors import refuse_remote, system_text
from pipeline.files.find import DataFile, find, named, partitions_of
from pipeline.init.choice import Choice, as_option, given_to, is_binary, label_options, labelled_rows, of_role
from pipeline.init.columns import Column, Look
from pipeline.init.daily import daily_time, with_days
from pipeline.init.division import Divided, Division, divide, rate_of, shown_time, split_table
from pipeline.init.look import look_at_labelled
from pipeline.init.roles import categories_of, choose_roles, fit_to_splits, note_of, sequences_of
from pipeline.init.values import drafted_time
from pipeline.machine import limits
from pipeline.machine.aside import move_aside
from pipeline.machine.process import return_freed_memory
from pipeline.machine.signals import heed_interrupts
from pipeline.messages.uris import cut, is_remote, uri_of
from pipeline.prepare.command import sources_of
from pipeline.prepare.draft import Draft, draft_of, quoted, with_sequences, workflow_name, workflow_text
from pipeline.prepare.layout import KEPT, MANIFEST
from pipeline.prepare.main import MEMORY_PER_BYTE, PROCESS_BYTES
from pipeline.prepare.main import main as prepare_main
from pipeline.prepare.statistics import write_numbers
from pipeline.settings import SPLITS
from pipeline.storage.durable import replacing

RANGE_WIDTH = 24
"""Width of the ranges in the table of columns."""
MEMORY, SHARE = 1 << 30, 16
"""Memory for a preparation: MEMORY bytes, or 1 / SHARE of the free memory if that is more."""
PIECE_BYTES = 64 << 20
"""Default size of `prepare`'s parts in bytes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit code: 0 on success, 2 for an error before anything was written, 1 if `prepare`
    ended early, 130 if interrupted."""
    args = init_arguments().parse_args(argv)
    try:
        heed_interrupts()
        return init_command(args)
    except (ValueError, OSError, MemoryError, pa.ArrowException) as error:
        print(f"error: {system_text(error) or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before anything was written", file=sys.stderr)
        return 130


def init_command(args: argparse.Namespace) -> int:
    """Inspect the files, choose roles, write the workflow, and report. Return the exit code."""
    refuse_remote("--out", args.out)
    out: Path = args.out.absolute()
    if out.suffix != ".py":
        raise ValueError(f"--out {args.out}: a workflow is a Python file; give a name such as {out.stem}.py")
    if out.exists() and not args.fresh:
        raise ValueError(
            f"{args.out} already exists; --fresh moves it aside, and the data prepared for it; or name another file"
        )
    there = next(path for path in out.parents if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"--out {args.out}: cannot write to {there}; name a file in another folder")
    found, left_out = sources_of(args.data)
    # Kaggle's submission template has a column of dummy labels.
    forms = [file for file in found if file.stem.lower().replace("_", "").startswith("samplesubmission")]
    left_out += forms if len(forms) < len(found) else []
    if left_out:
        print(f"left out: {', '.join(file.name for file in left_out)}")
    files = [file for file in found if file not in left_out]
    labels = [*args.label, *(role.removesuffix("=label") for role in args.roles if role.endswith("=label"))]
    labels += [label.partition("=")[0] for label in labels]
    nothing = [role.removesuffix("=nothing") for role in args.roles if role.endswith("=nothing")]
    look, to_score = look_at_labelled(files, labels, args.skip_bad, nothing)
    if to_score:
        print(f"left out, since they have no label: {', '.join(file.name for file in to_score)}")
    if not look.sample.num_rows:
        raise ValueError(f"{look.paths[0]}: there are no rows in the files; name files that have rows")
    look = look if args.skip_bad is None else labelled_rows(look, labels)
    choices = choose_roles(look, args.label, args.roles)
    divided = divide(look, choices)
    choices = fit_to_splits(choices, look, divided)
    weight, group = (given_to(choices, role) for role in ("weight", "group"))
    print(table_of(look, choices))
    sequences = sequences_of(choices, look)
    for sequence in sequences:
        print(f"note: {note_of(sequence, choices)}")
    folder, schema, numbers = (out.with_name(f"{out.stem}_{end}") for end in ("data", "schema.json", "numbers.json"))
    as_they_are = look.delimiter is None and args.skip_bad is None and not any(choice.values for choice in choices)
    # A workflow cannot name parts of a table.
    as_they_are &= args.daily or all(path.version is None for path in look.paths)
    if args.daily:
        days = daily_time(look, choices, as_they_are)
        divided = Divided(f"none; each day of {', '.join(days.names)} is trained on once", {"train": look.paths})
    if args.fresh:
        # A folder of that name may contain the user's data.
        for path in filter(Path.exists, (out, schema, numbers, *([folder] if (folder / KEPT).is_dir() else []))):
            print(move_aside(path))
    print(f"splits: {divided.why}")
    if divided.files and as_they_are:
        print(split_table(divided.files, choices))
        (root, draft), parts = draft_of_files(out, look, choices, divided.files), divided.files
    else:
        options = ["--split", divided.option or _by_files(divided.files or {})]
        options += [] if args.skip_bad is None else ["--skip-bad", str(args.skip_bad)]
        is_named = look.delimiter is None and found == files and not to_score
        sources = args.data if is_named else [*map(shown, look.paths)]
        if code := _prepare(schema, folder, look, choices, sources, options):
            print(f"{args.out} is not written; the same `init` with --fresh begins again", file=sys.stderr)
            return code
        summary = json.loads((folder / MANIFEST).read_bytes())
        parts = {split: tuple(map(named, sorted((folder / split).glob("*.parquet")))) for split in SPLITS}
        if divided.files and not divided.option:
            print(split_table({split: parts[split] for split in divided.files}, choices))
        else:
            print(*divided.differences({split: of["rows"] for split, of in summary["splits"].items()}), sep="", end="")
        summary["columns"].pop(weight, None)
        root = folder
        draft = draft_of(summary, workflow_name(out.stem), f"Path(__file__).parent / {quoted(folder.name)}")
        if look.delimiter is None:
            draft = replace(draft, categories=categories_of(choices, look))
    draft = with_sequences(with_days(draft, days) if args.daily else draft, sequences)
    times, files = [choice.column.name for choice in of_role(choices, "time")], [p for of in parts.values() for p in of]
    draft = replace(draft, time=drafted_time(look, times, draft.columns, files))
    out.parent.mkdir(parents=True, exist_ok=True)
    known = write_numbers(draft, root, numbers) if draft.numbers else []
    for name in (name for name in draft.numbers if name not in known):
        print(f"{name} is left out: it has one value in the training rows")
    draft = replace(draft, weight=weight, group=group, numbers=known, statistics=numbers.name)
    if args.tries and not args.daily:
        # Its imports take seconds.
        from pipeline.init.trial import try_candidates

        num_buckets = draft.num_buckets
        try:
            draft = try_candidates(draft, parts, choices)
        except KeyboardInterrupt:
            print("interrupted: the draft is that of --no-try; the same command with --fresh tries candidates again")
        if draft.numbers and draft.num_buckets != num_buckets:
            write_numbers(draft, root, numbers)
    with replacing(out) as file:
        file.write(workflow_text(draft).encode())
    print(f"{args.out} is written; train it: pipeline run {shlex.quote(str(args.out))}")
    if args.daily:
        in_table = any(path.version is not None for path in look.paths)
        data = f"{shlex.join(args.data)} --known-ok" if in_table else "DATA"
        print(f"then each day: pipeline run {shlex.quote(str(args.out))} --extend {data}")
    if to_score:
        places, kind = shlex.join(map(shown, to_score)), {None: "", "": "json"}.get(look.delimiter, "csv")
        if kind:
            way = f"--schema {shlex.quote(str(schema))} --no-label --out FOLDER"
            print(f"Parquet of the files without a label: pipeline prepare {kind} {places} {way}")
        print(f"then score them: pipeline score RUN {'FOLDER/test' if kind else places} --out SCORES")
    return 0


def table_of(look: Look, choices: Sequence[Choice]) -> str:
    """Table of the columns and their roles, and one line per doubtful column, with the option that changes its role."""
    rows = sum(look.rows)
    about = "" if look.delimiter is None else "about "
    lines = [f"{about}{rows:,} rows in {files_of(look)}; {look.sample.num_rows:,} rows were inspected"]
    width = max(len(choice.column.name) for choice in choices)
    lines.append(
        f"{'column':{width}}  {'role':9}  {'different':>9}  {'null':>6}  {'range or values':{RANGE_WIDTH}}  why"
    )
    for choice in choices:
        column = choice.column
        null = f"{column.num_nulls / column.num_rows:6.1%}" if column.num_nulls else "      "
        role = choice.given or ("nothing" if choice.role == "skip" else choice.role)
        reach = _range(column, choice.role == "time")
        # A column that was not read has no kind.
        different = f"{column.num_different:9,}" if column.kind else " " * 9
        lines.append(
            f"{column.name:{width}}  {role:9}  {different}  {null}  {reach:{RANGE_WIDTH}.{RANGE_WIDTH}}  {choice.why}"
        )
    worst_first = sorted(choices, key=lambda choice: not choice.after_label)
    lines += [f"warning: {choice.warning}" for choice in worst_first if choice.warning]
    return "\n".join([*lines, *(f"note: {note}" for choice in choices if (note := _note(choice, choices)))])


def files_of(look: Look) -> str:
    """Number of files, as text."""
    return f"{len(look.paths):,} file{'s' * (len(look.paths) > 1)}"


def _note(choice: Choice, choices: Sequence[Choice]) -> str:
    """Doubt about a column's role, and the option that changes it; empty if there is none or a warning covers it."""
    column = choice.column
    if choice.role in ("category", "skip") and column.note and column.kind not in ("time", None):
        return column.note
    if choice.given or choice.warning or choice.role not in ("number", "category"):
        return ""
    if is_binary(column):
        return (
            f"{column.name}: 0 and 1, like an outcome, and kept as a {choice.role}; if it is one more label, "
            f"{label_options([*of_role(choices, 'label'), choice])}; if known only after the label, "
            f"{as_option(column, 'nothing')}"
        )
    if not choice.either:
        return ""
    if choice.role == "number":
        return f"{column.name}: treated as amounts; if they are ids, {as_option(column, 'category')}"
    return f"{column.name}: treated as ids; if they are amounts, {as_option(column, 'number')}"


def draft_of_files(out: Path, look: Look, choices: Sequence[Choice], division: Division) -> tuple[Path, Draft]:
    """Root and draft of a workflow that reads the Parquet files unchanged."""
    # A workflow names a table by its folder.
    folders = [Path(path.added[0] or cut(path.place)[0]).parent for path in look.paths]
    parent = Path(os.path.commonpath(folders))
    # Folders above the root do not become columns, so the root must lie above all partition folders.
    in_paths = {name for path in look.paths for name, _ in path.partitions}
    while in_paths & {name for name, _ in partitions_of(f"{parent}/")}:
        parent = parent.parent
    inside = parent.is_relative_to(out.parent)
    place = look.paths[0].place
    root = uri_of(parent) + cut(place)[1] if is_remote(place) else str(parent)
    relative = quoted(str(parent.relative_to(out.parent))) if inside else ""
    rows = dict(zip(look.paths, look.rows, strict=True))
    num_rows = sum(rows[path] for path in division["train"])
    draft = Draft(
        name=workflow_name(out.stem),
        what=f"{sum(look.rows):,} rows of {files_of(look)}",
        root=f"Path(__file__).parent / {relative}" if inside else f"Path({quoted(root)})",
        splits={
            split: _patterns(division[split], look, Path(root), parent) for split in SPLITS if split in division
        },
        labels=[choice.column.name for choice in of_role(choices, "label")],
        numbers=[choice.column.name for choice in of_role(choices, "number")],
        categories=categories_of(choices, look),
        statistics="",
        columns=look.sample.column_names,
        num_rows=num_rows,
        rates={
            choice.column.name: rate_of(division["train"], choice.column.name) for choice in of_role(choices, "label")
        },
    )  # fmt: skip
    return Path(root), draft


def _patterns(paths: Sequence[DataFile], look: Look, root: Path, parent: Path) -> list[str]:
    """Patterns below the root, whose path is `parent`, that match these files and no others: of folders, else files."""
    others = [Path(cut(path.place)[0]) for path in {*look.paths} - {*paths}]
    mixed = {folder for path in others for folder in path.parents} | {parent, *parent.parents}
    places = {path.place for path in look.paths}

    @functools.cache
    def is_whole(pattern: str) -> bool:
        return {file.place for file in find([pattern], root, form="Parquet").files} <= places

    found = dict[str, None]()
    for file in (Path(cut(path.place)[0]) for path in paths):
        folders = [glob.escape(str(one.relative_to(parent))) for one in reversed(file.parents) if one not in mixed]
        found[next(filter(is_whole, folders), glob.escape(str(file.relative_to(parent))))] = None
    return [*found]


def _by_files(division: Division) -> str:
    """Value of prepare's --split for a split by whole files."""
    held = {split: paths for split, paths in division.items() if split != "train"}
    # A pattern of --split ends at a comma.
    names = {split: [glob.escape(shown(path)).replace(",", "?") for path in paths] for split, paths in held.items()}
    return "file:" + ",".join(f"{split}={','.join(of)}" for split, of in names.items())


def _prepare(
    path: Path, folder: Path, look: Look, choices: Sequence[Choice], sources: Sequence[str], options: Sequence[str]
) -> int:
    """Run `prepare` to split the rows and convert text to Parquet. Return its exit code. `path`: file for the schema of
    text. Raises ValueError if it exists."""
    # `prepare` rejects rows without a time, and a column with missing times cannot split the rows.
    choices = [
        replace(c, role="skip") if c.role == "time" and c.column.num_nulls and not c.given else c for c in choices
    ]
    if look.delimiter is None:
        schema = [
            f"{_as_pattern(c.column.name)}:{c.role}{_text_type(c) if c.values else ''}"
            for c in choices if c.role != "skip"
        ]  # fmt: skip
        kind = "parquet"
    else:
        if path.exists():
            raise ValueError(f"{path} already exists; --fresh moves it aside; or name another file by --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"columns": [f"{c.column.name}:{c.role}{_text_type(c)}" for c in choices], **look.options}
        with replacing(path) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
        schema, kind = [str(path)], "csv" if look.delimiter else "json"
    argv = [kind, *sources, "--out", str(folder), "--schema", *schema, *options]
    print(f"a copy in Parquet, with its splits, is made by: pipeline prepare {shlex.join(argv)}", flush=True)
    # Free the time columns, which are no longer needed.
    pa.default_memory_pool().release_unused()
    return_freed_memory()
    most = max(MEMORY, limits.free_memory() // SHARE) - PROCESS_BYTES
    workers = max(1, min(limits.cpus(), most // (MEMORY_PER_BYTE * PIECE_BYTES)))
    return prepare_main([*argv, "--workers", str(workers)])


def shown(file: DataFile) -> str:
    """Path of a file, relative to the current folder if inside it."""
    if is_remote(file.place):
        return file.place
    path = Path(file.place)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _as_pattern(name: str) -> str:
    """Pattern that matches only this name, and cannot be taken for an option or a name with a role."""
    pattern = glob.escape(name).replace(":", "[:]")
    return f"[-]{pattern[1:]}" if pattern.startswith("-") else pattern


def _text_type(choice: Choice) -> str:
    """Type of a text column in prepare's schema."""
    if choice.values:
        return f":{choice.values[0]}/{choice.values[1]}"
    found = choice.column.types.get(choice.role)
    return f":{found}" if found else ""


def _range(column: Column, is_time: bool) -> str:
    if column.minimum is None:
        return ", ".join(str(value).replace("\n", "\\n") for value in column.examples)
    if is_time:
        ends = (shown_time(pa.scalar(end, column.type)) for end in (column.minimum, column.maximum))
        return " to ".join(end[:10] for end in ends)
    if column.kind == "time":
        return f"{column.minimum} to {column.maximum}"
    # Parquet statistics store 0 as -0.
    low, high = column.minimum + 0, column.maximum + 0
    # A number truncated by the table would be misread.
    return found if len(found := f"{low:.6g} to {high:.6g}") <= RANGE_WIDTH else f"{low:.3g} to {high:.3g}"
