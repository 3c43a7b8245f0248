"""python -m pipeline why RUN FIELD=VALUE: show what each kept commit of a run has of one value: how often and when
it was last trained, the norm of its weights, and where its row is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, error_text, refuse_remote

COLUMNS = ("number", "name", "step", "count", "last_step", "norm", "file", "row")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 also for a value without a row, 2 if an argument or the run is wrong, 1 if training
    deletes a commit meanwhile."""
    parser = argparse.ArgumentParser(prog="python -m pipeline why", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("value", metavar="FIELD=VALUE", help="a value of a categorical field; null: a missing value")
    parser.add_argument("--json", action="store_true", help="as JSON, with the weights")
    args = parser.parse_args(argv)
    try:
        refuse_remote("the run", args.run)
        # This import takes seconds, and --help does not need it.
        from pipeline.serving.value_history import value_history

        found = value_history(args.run, args.value)
    except (ValueError, OSError, MemoryError, PipelineError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError | OSError | MemoryError) else 1
    print(json.dumps(found, indent=2) if args.json else text_of_value(found))
    return 0


def text_of_value(found: Mapping[str, Any]) -> str:
    """Table with a line for each kept commit."""
    cells = [[_cell(commit.get(name)) for name in COLUMNS] for commit in found["commits"]]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (COLUMNS, *cells)]
    value = json.dumps(found["value"], ensure_ascii=False)
    return "\n".join([f"{found['field']} = {value}: key {found['key']}; in each kept commit:", *table])


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
