"""pipeline why RUN FIELD=VALUE: tell what a run knows of one value: how often it was trained, when it changed
last, its norms, and where its row lies in each kept commit."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.arguments import why_arguments
from pipeline.errors import PipelineError, error_text, refuse_remote


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 also for a value without a row, 2 if an argument or the commit is wrong, 1 if the
    commit is deleted meanwhile."""
    args = why_arguments().parse_args(argv)
    try:
        refuse_remote("the run", args.run)
        # These imports take seconds, and --help needs none of them.
        from pipeline.serving.explained_value import explain_value

        found = explain_value(args.run, args.value, args.commit)
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if args.json else text_of_value(found))
    return 0


def text_of_value(found: Mapping[str, Any]) -> str:
    """Text for people."""
    fields, commit = found["fields"], found["commit"]
    shared = f", which {' and '.join(fields)} share" if len(fields) > 1 else ""
    whose = "a missing value" if found["value"] is None else f"table {found['table']}{shared}"
    shard = f", shard {found['shard']} of {found['num_shards']}" if found["num_shards"] > 1 else ""
    named = f" ({commit['name']})" if commit["name"] else ""
    lines = [
        f"{found['field']} = {json.dumps(found['value'], ensure_ascii=False)}: key {found['key']} of {whose}{shard}",
        f"commit {commit['number']}{named} of {found['run']}, after step {commit['step']:,}:",
    ]
    lines += _row(found) if found["known"] else _no_row(found)
    lines += ["kept commits, and how the row differs from the one in the commit before:", *_table(found)]
    if not found["finished"]:
        lines.append(
            "training may have moved the row into memory since, and changed it: only what is committed can be seen"
        )
    return "\n".join(lines)


def _row(found: Mapping[str, Any]) -> list[str]:
    step, since = found["last_step"], found["commit"]["step"] - found["last_step"]
    state = [f"  {name:10}  norm {norm:.6g}" for name, norm in found["state_norms"].items()]
    return [
        f"  count       {found['count']:,}: occurrences in training",
        f"  last step   {step:,}: the last one whose batch had it{f', {since:,} before the commit' if since else ''}",
        f"  weights     norm {found['weights_norm']:.6g} of {len(found['weights'])}, as an evaluation reads them",
        *state,
        f"  lies in     {found['file']}, row {found['row']:,} (byte {found['offset']:,})",
    ]


def _no_row(found: Mapping[str, Any]) -> list[str]:
    return [
        "  it has no row: no training example before this commit has the value",
        f"  weights     norm {found['weights_norm']:.6g} of {len(found['weights'])}: a model reads its first row, "
        "which follows from the seed and the key alone",
    ]


def _table(found: Mapping[str, Any]) -> list[str]:
    lines = [("commit", "after step", "row", "count", "last step", "file", "row in it")]
    for commit in found["commits"]:
        named = f" ({commit['name']})" if commit["name"] else ""
        lines.append(
            (f"{commit['number']}{named}", f"{commit['step']:,}", commit["change"], *_where(found["run"], commit))
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _where(run: str, commit: Mapping[str, Any]) -> tuple[str, str, str, str]:
    if not commit["known"]:
        return "-", "-", "-", "-"
    file = str(Path(commit["file"]).relative_to(run))
    return f"{commit['count']:,}", f"{commit['last_step']:,}", file, f"{commit['row']:,}"


if __name__ == "__main__":
    sys.exit(main())
