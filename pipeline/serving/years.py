"""Years of the times that a model was trained on, from the statistics of its files."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from pipeline.files.find import named, place_of
from pipeline.files.flat import open_file
from pipeline.serving.commit import OpenedCommit

SAMPLED = 8
"""Number of files of which the statistics are read."""


def years_of(opened: OpenedCommit) -> dict[str, tuple[int, int]]:
    """First and last year of each time in some of the training files, as far as they are still there."""
    files, times = opened.state.data["train"].files, opened.features.times().values()
    chosen = {n * (len(files) - 1) // (SAMPLED - 1) for n in range(SAMPLED)} if files and times else {}
    found: dict[str, list[int]] = {time.name: [] for time in times}
    for path in [files[n].path for n in sorted(chosen)]:
        root = opened.workflow.data.root
        with (
            suppress(ValueError, OSError, OverflowError, pa.ArrowException),
            open_file(named(place_of(path, root), root)) as file,
        ):
            for time in times:
                ends = [s for s in file.statistics(time.name) if s is not None and s.has_min_max]
                found[time.name] += [year for s in ends for year in map(time.year, (s.min, s.max)) if year is not None]
    return {name: (min(years), max(years)) for name, years in found.items() if years}
