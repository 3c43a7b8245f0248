"""pipeline init DATA... --out FILE: look at Parquet or CSV files, and write a workflow for them."""

from __future__ import annotations

import argparse
import glob
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.arguments import init_arguments
from pipeline.data.files import SPLITS
from pipeline.errors import refuse_remote
from pipeline.files.find import DataFile, partitions_of
from pipeline.init.choice import Choice
from pipeline.init.division import Division, divide, split_option
from pipeline.init.labels import is_binary
from pipeline.init.look import Column, Look, look_at_files
from pipeline.init.roles import choose_roles, shared_table, without_unseen
from pipeline.machine.aside import move_aside
from pipeline.machine.signals import heed_interrupts
from pipeline.prepare.command import sources_of
from pipeline.prepare.draft import Draft, draft_of, number_setting, quoted, workflow_name, workflow_text
from pipeline.prepare.layout import KEPT, MANIFEST
from pipeline.prepare.main import main as prepare_main
from pipeline.storage.durable import replacing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 for an error before anything was written, 1 if `prepare` ended early,
    130 if it was interrupted."""
    args = init_arguments().parse_args(argv)
    try:
        heed_interrupts()
        return init_command(args)
    except (ValueError, OSError, MemoryError, pa.ArrowException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before anything was written", file=sys.stderr)
        return 130


def init_command(args: argparse.Namespace) -> int:
    """Look, choose, write, and say what was done."""
    refuse_remote("--out", args.out)
    out: Path = args.out.absolute()
    if out.suffix != ".py":
        raise ValueError(f"--out {args.out}: a workflow is a Python file; give a name such as {out.stem}.py")
    if out.exists() and not args.fresh:
        raise ValueError(
            f"{args.out} is there already; --fresh moves it aside, and the data prepared for it; or name another file"
        )
    files, left_out = sources_of(args.data)
    if left_out:
        print(f"left out: {', '.join(file.name for file in left_out)}")
    look = look_at_files(files)
    if not look.sample.num_rows:
        raise ValueError(f"{look.paths[0]}: there are no rows in the files; name files that have rows")
    choices = choose_roles(look, args.label)
    division = divide(look)
    if division:
        train = set(division[0]["train"])
        choices = without_unseen(choices, look, [n for n, path in enumerate(look.paths) if path not in train])
    print(table_of(look, choices))
    folder, schema = (out.with_name(f"{out.stem}_{name}") for name in ("data", "schema.json"))
    if args.fresh:
        # A folder of that name may be the data themselves.
        for path in filter(Path.exists, (out, schema, *([folder] if (folder / KEPT).is_dir() else []))):
            print(move_aside(path))
    if division and look.delimiter is None and not any(choice.values for choice in choices):
        print(f"splits: {division[1]}")
        draft = draft_of_files(out, look, choices, division[0])
    else:
        if code := _prepare(schema, folder, look, choices, division):
            print(f"{args.out} is not written; the same `init` with --fresh begins again", file=sys.stderr)
            return code
        summary = json.loads((folder / MANIFEST).read_bytes())
        draft = draft_of(summary, workflow_name(out.stem), f"Path(__file__).parent / {quoted(folder.name)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        file.write(workflow_text(draft).encode())
    print(f"{args.out} is written; train it: pipeline run {shlex.quote(str(args.out))}")
    return 0


def table_of(look: Look, choices: Sequence[Choice]) -> str:
    """Table of the columns and what they are taken for, and the warnings."""
    rows = sum(look.rows)
    about = "" if look.delimiter is None else "about "
    lines = [f"{about}{rows:,} rows in {len(look.paths):,} files; {look.sample.num_rows:,} rows were looked at"]
    width = max(len(choice.column.name) for choice in choices)
    lines.append(f"{'column':{width}}  {'taken for':9}  {'different':>9}  {'null':>6}  {'range or values':24}  why")
    for choice in choices:
        column = choice.column
        null = f"{column.num_nulls / column.num_rows:6.1%}" if column.num_nulls else "      "
        role = "nothing" if choice.role == "skip" else choice.role
        lines.append(
            f"{column.name:{width}}  {role:9}  {column.num_different:9,}  {null}  {_range(column):24.24}  {choice.why}"
        )
    lines += [f"warning: {choice.warning}" for choice in choices if choice.warning]
    return "\n".join([*lines, *_notes(choices)])


def _notes(choices: Sequence[Choice]) -> Iterator[str]:
    """One line for each kind of doubt, with the edit of the workflow that it may need."""
    numbers, categories = ([c for c in choices if c.either and c.role == role] for role in ("number", "category"))
    binary = [c for c in choices if c.role in ("number", "category") and is_binary(c.column)]
    if numbers:
        yield (
            f"note: {_names(numbers)}: names of things or amounts? taken for amounts; if they are names, write for "
            f"{_number(numbers[0].column)} Category(name={quoted(numbers[0].column.name)}) under categories"
        )
    if categories:
        yield (
            f"note: {_names(categories)}: names of things or amounts? taken for names; if they are amounts, write for "
            f"Category(name={quoted(categories[0].column.name)}) {_number(categories[0].column)} under numbers"
        )
    if binary:
        yield (
            f"note: {_names(binary)}: 0 and 1, as of outcomes; take from the workflow those that are known only "
            "after the label"
        )


def _names(choices: Sequence[Choice]) -> str:
    return ", ".join(choice.column.name for choice in choices)


def draft_of_files(out: Path, look: Look, choices: Sequence[Choice], division: Division) -> Draft:
    """Draft of the workflow of Parquet files as they are."""
    parent = Path(os.path.commonpath([Path(path.place).parent for path in look.paths]))
    # Folders above the root are no columns.
    in_paths = {name for path in look.paths for name, _ in path.partitions}
    while in_paths & {name for name, _ in partitions_of(f"{parent}/")}:
        parent = parent.parent
    inside = parent.is_relative_to(out.parent)
    relative = quoted(str(parent.relative_to(out.parent))) if inside else ""
    rows = dict(zip(look.paths, look.rows, strict=True))
    num_rows = sum(rows[path] for path in division["train"])
    of_role = {role: [c for c in choices if c.role == role] for role in ("label", "number", "category")}
    return Draft(
        name=workflow_name(out.stem),
        what=f"{sum(look.rows):,} rows of {len(look.paths):,} files",
        root=f"Path(__file__).parent / {relative}" if inside else f"Path({quoted(str(parent))})",
        splits={
            split: [glob.escape(str(Path(path.place).relative_to(parent))) for path in division[split]]
            for split in SPLITS if split in division
        },
        labels=[choice.column.name for choice in of_role["label"]],
        numbers=[_number(choice.column) for choice in of_role["number"]],
        categories=[_category(choice, choices, look) for choice in of_role["category"]],
        num_rows=num_rows,
    )  # fmt: skip


def _prepare(
    path: Path, folder: Path, look: Look, choices: Sequence[Choice], division: tuple[Division, str] | None
) -> int:
    """Divide the rows, and make Parquet of text, by `prepare`. Returns its exit code. `path`: file for the schema of
    text; ValueError is raised if it exists."""
    option, why = split_option(look, choices)
    if division:
        held = {split: paths for split, paths in division[0].items() if split != "train"}
        option = "file:" + ",".join(
            f"{split}={','.join(glob.escape(shown(path)) for path in paths)}" for split, paths in held.items()
        )
        why = division[1]
    if look.delimiter is None:
        schema = [f"{c.column.name}:{c.role}{_text_type(c) if c.values else ''}" for c in choices if c.role != "skip"]
        kind = "parquet"
    else:
        if path.exists():
            raise ValueError(f"{path} is there already; --fresh moves it aside; or name another file by --out")
        columns = [f"{c.column.name}:{c.role}{_text_type(c)}" for c in choices]
        with replacing(path) as file:
            content = {"columns": columns, "delimiter": look.delimiter, "header": look.has_header}
            file.write(json.dumps(content, indent=1).encode() + b"\n")
        schema, kind = [str(path)], "csv"
    argv = [kind, *map(shown, look.paths), "--out", str(folder), "--schema", *schema, "--split", option]
    print(f"splits: {why}")
    print(f"a copy in Parquet, with its splits, is made by: pipeline prepare {shlex.join(argv)}", flush=True)
    return prepare_main(argv)


def shown(file: DataFile) -> str:
    """Path of a file, relative to the current folder if it is below it."""
    path = Path(file.place)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _text_type(choice: Choice) -> str:
    """Type of a column of text, as prepare's schema names it."""
    if choice.values:
        return f":{choice.values[0]}/{choice.values[1]}"
    types = {"number": ":float32", "category": ":string", "time": ":string"}
    return ":int64" if choice.role in types and choice.column.whole else types.get(choice.role, "")


def _number(column: Column) -> str:
    low, high = (0, 2) if column.minimum is None else (column.minimum, column.maximum)
    return number_setting(column.name, low, high, column.whole)


def _category(choice: Choice, choices: Sequence[Choice], look: Look) -> str:
    column = choice.column
    table = shared_table(choice, choices, look)
    more = (f", table={quoted(table)}" if table else "") + (
        ', pooling="mean"' if (column.kind or "").startswith("lists") else ""
    )
    return f"Category(name={quoted(column.name)}{more})"


def _range(column: Column) -> str:
    if column.minimum is not None:
        return (
            f"{column.minimum:.6g} to {column.maximum:.6g}"
            if column.kind != "time"
            else f"{column.minimum} to {column.maximum}"
        )
    return ", ".join(str(value) for value in column.examples)


if __name__ == "__main__":
    sys.exit(main())
