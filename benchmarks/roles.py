"""Roles that `init` chooses for the columns of real logs, with the real names and with meaningless names.

The correct roles were written manually from the description of each log, before anything was measured. If two roles are
equally good (a level from 1 to 6, an outcome that is not the label), both are correct. The logs are not part of the
repository; missing logs are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.common import arguments, finish
from pipeline.files.find import named
from pipeline.init.columns import Look
from pipeline.init.look import look_at_files
from pipeline.init.roles import choose_roles

LOGS = Path(__file__).parents[2] / "shared" / "data"
TRUTH = {
    "adclick_6days": ("day_*", "label", {
        "time": "time", "session_id": "skip", "age_level user_depth city_development_index": "category number",
        "var_1": "category number", "day": "category number skip time",
    }),
    "amazon_beauty": ("train", "label", {}),
    "census_income_half": ("train", "income_50k never_married", {
        "age wage_per_hour capital_gains capital_losses stock_dividends weeks_worked": "number",
        "num_emp": "category number", "instance_weight": "skip number",
    }),
    "criteo_1tb_sample": ("part-*", "label", {"i10": "category number", "i*": "number"}),
    "frappe_x1": ("train", "label", {}),
    "kuairand_14days": ("day_*", "is_click long_view liked is_comment is_follow is_forward is_profile_enter", {
        "time_ms": "time", "duration_ms": "number", "play_time_ms comment_stay_time_ms": "number skip",
        "day": "category number skip time",
    }),
    "movietweetings_100k": ("week_*", "label", {
        "rating": "number skip category", "timestamp": "time", "day": "category number skip time",
        "release_year": "category number", "hist_timestamps": "skip",
    }),
}  # fmt: skip
"""Files, labels, and columns of each log with their correct roles; all other columns are categories."""


def main() -> None:
    args = arguments("roles", __doc__ or "", lambda parser: parser.add_argument("--logs", type=Path, default=LOGS))
    figures = {"logs": 0.0}
    for log, (pattern, labels, truth) in TRUTH.items():
        if not (paths := [named(path) for path in sorted((args.logs / log).glob(f"{pattern}.parquet"))]):
            print(f"{args.logs / log} is not there: left out")
            continue
        look = look_at_files(paths)
        figures |= {"logs": figures["logs"] + 1, f"{log} columns": len(look.columns) - len(labels.split())}
        for how, names in (("named", look.sample.schema.names), ("unnamed", [f"c{n}" for n in range(1, 200)])):
            figures[f"{log} {how}"] = right(look, labels.split(), truth, names)
    for what in ("columns", "named", "unnamed"):
        figures[what] = sum(value for name, value in figures.items() if name.endswith(f" {what}"))
    finish(args, {name: float(value) for name, value in figures.items()})


def right(look: Look, labels: Sequence[str], truth: dict[str, str], names: Sequence[str]) -> int:
    """Number of columns, excluding labels, whose role is correct if the columns have these names."""
    old = look.sample.schema.names
    renamed = dict(zip(old, names, strict=False))
    found = choose_roles(
        replace(
            look,
            sample=look.sample.rename_columns(list(renamed.values())),
            columns=tuple(replace(column, name=renamed[column.name]) for column in look.columns),
        ),
        [renamed[label] for label in labels],
    )
    count = 0
    for name, choice in zip(old, found, strict=True):
        if name not in labels:
            wanted = (roles for names, roles in truth.items() if any(fnmatchcase(name, n) for n in names.split()))
            count += choice.role in (roles := next(wanted, "category").split())
            if choice.role not in roles:
                print(f"{name} as {choice.column.name}: {choice.role}, {choice.why}, not {' or '.join(roles)}")
    return count


if __name__ == "__main__":
    main()
