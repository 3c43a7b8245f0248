"""Warnings about unusual data that may be intentional. Only the footers of Parquet files are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline.data.files import listings_of
from pipeline.files.find import DataFile, form_of, matches, some
from pipeline.files.flat import open_file
from pipeline.workflow import Data


def remarks(data: Data, num_examples: Mapping[str, int]) -> Iterator[str]:
    """Yield one line per remark. `num_examples`: number of examples of each split. The files must have passed
    `SchemaCheck`."""
    for split, listing in (listings := listings_of(data)).items():
        if text := [file for file in listing.left_out if form_of(file)]:
            yield f"data.{split}: next to Parquet {len(text):,} other files are left out: {some(text)}"
        if listing.files and not num_examples[split]:
            yield f"data.{split}: its files have no rows, so that nothing is evaluated on them; name files that have"
        for pattern in getattr(data, split):
            found = matches(pattern, data.root)
            folders = [path for path in map(Path, found) if path.is_dir()]
            if 0 < len(folders) < len(found):
                names = ", ".join(path.name for path in folders[:3]) + (", ..." if len(folders) > 3 else "")
                yield (
                    f"data.{split}: {pattern!r} matches {len(found):,} names, of which {len(folders):,} are folders "
                    f"({names}): the Parquet files in them are read, too"
                )
    for label in data.labels:
        value = _only_value(listings["train"].files, label)
        if value is not None:
            yield (
                f"all training labels of {label!r} are {value:g}: there is nothing to learn; look at data.labels and "
                "data.train"
            )


def _only_value(files: Iterable[DataFile], label: str) -> float | None:
    """Return the single value of a column if the footers show that it has only one, else None. Opens no more files than
    necessary."""
    seen: set[float] = set()
    for path in files:
        with open_file(path) as file:
            place = file.leaf(label)
            if place is None:
                return None
            for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
                statistics = group.column(place).statistics
                if group.num_rows == 0:
                    continue
                if statistics is None or not statistics.has_min_max:
                    return None
                # Arrow returns bytes for 16-bit floats.
                if not all(isinstance(value, (int, float)) for value in (statistics.min, statistics.max)):
                    return None
                # Footers store a minimum of zero as -0.0; adding 0.0 turns it into 0.0.
                seen |= {float(statistics.min) + 0.0, float(statistics.max) + 0.0}
                if len(seen) > 1:
                    return None
    return seen.pop() if seen else None
