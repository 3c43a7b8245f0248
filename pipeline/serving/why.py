"""pipeline why RUN FIELD=VALUE: show a value in each kept commit of a run: how often it was trained and when last, the
norm of its weights, and where its row is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.arguments import why_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command

COLUMNS = ("number", "name", "step", "count", "last_step", "norm", "file", "row")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, even if the value has no row, 1 if training deletes a commit meanwhile,
    2 if an argument or the run is wrong."""
    args = why_arguments().parse_args(argv)
    return run_command(lambda: why_command(args))


def why_command(args: argparse.Namespace) -> str:
    refuse_remote("the run", args.run)
    # This import takes seconds, and --help does not need it.
    from pipeline.serving.value_history import value_history

    found = value_history(args.run, args.value)
    return json.dumps(found, indent=2) if args.json else text_of_value(found)


def text_of_value(found: Mapping[str, Any]) -> str:
    """Table with a line for each kept commit."""
    cells = [[_cell(commit.get(name)) for name in COLUMNS] for commit in found["commits"]]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (COLUMNS, *cells)]
    value = json.dumps(found["value"], ensure_ascii=False)
    return "\n".join([f"{found['field']} = {value}: key {found['key']}; in each kept commit:", *table])


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
