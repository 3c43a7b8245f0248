"""A workflow that is trained on the days of a log one by one, from the files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from pipeline.files.description import Description
from pipeline.files.plausible import UNITS
from pipeline.init.choice import Choice, of_role
from pipeline.init.columns import Look
from pipeline.init.values import clock_of, counted, floats_of
from pipeline.prepare.draft import FAST, Draft, quoted
from pipeline.settings.columns import Time
from pipeline.spans.times import RowTimes
from pipeline.workflow import Data


def daily_time(look: Look, choices: Sequence[Choice], as_they_are: bool) -> Time:
    """The time by whose days the log is trained on: of the folders, else the first column of times. `as_they_are`:
    True if a workflow can read the files. Raises ValueError if it cannot, or if there is no time."""
    if not as_they_are:
        kind = {None: "parquet", "": "json"}.get(look.delimiter, "csv")
        raise ValueError(
            "--daily trains on the files as they are, so they must be Parquet files with labels of 0 and 1; make them "
            f"of each day, by `pipeline prepare {kind} DAY --schema SCHEMA --out days/day=2026-11-24` (init without "
            "--daily shows SCHEMA), and name the folder days; or leave --daily out"
        )
    names = [name for name, _ in look.paths[0].partitions]
    for time in [*(Time(name=name) for name in names), Time(name="year", parts=("month", "day"))]:
        if _is_in_paths(time, look):
            return time
    times = [choice.column.name for choice in of_role(choices, "time")]
    for name, values in ((name, look.sample.column(name)) for name in times):
        if values.null_count:
            continue
        if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
            return Time(name=name)
        unit = clock_of(*counted(floats_of(values))) if pa.types.is_integer(values.type) else ""
        if unit in UNITS:
            return Time(name=name, unit=unit)
    are = f"; {', '.join(times)} cannot be data.time" if times else ""
    raise ValueError(
        "--daily needs a time: folders such as day=2026-11-24, or a column of timestamps, dates, or integers since "
        f"1970, without nulls{are}; add one, name it by --as COLUMN=time, or leave --daily out"
    )


def _is_in_paths(time: Time, look: Look) -> bool:
    times = RowTimes(Data(train=(".",), labels=("label",), categories=("key",), time=time), Description())
    try:
        return all(times.of_path(path, "") for path in look.paths)
    except ValueError:
        return False


def with_days(draft: Draft, time: Time) -> Draft:
    """The draft of a workflow over the days of `time`, each trained on once."""
    names = [*map(quoted, time.names)]
    unit = f", unit={quoted(time.unit)}" if time.unit else ""
    return replace(
        draft,
        days=f"Time(name={names[0]}{unit})" if len(names) == 1 else f"({', '.join(names)})",
        recipe=FAST,
        categories=[category for category in draft.categories if category.name not in time.names],
        numbers=[name for name in draft.numbers if name not in time.names],
    )
