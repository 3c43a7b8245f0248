"""Final report of a preparation: a table of the splits, and the number of skipped lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.prepare.layout import MANIFEST
from pipeline.prepare.manifest import Prepared
from pipeline.prepare.splits import ByTime, asked_for
from pipeline.prepare.steps import Job
from pipeline.settings import SPLITS


def report_lines(job: Job, prepared: Prepared) -> Iterator[str]:
    """Lines of the report. All the data is also in _prepared.json."""
    yield from aligned(_split_rows(job, prepared))
    yield from job.format.notes
    lines, skipped = (sum(numbers) for numbers in zip(*((s.lines, s.skipped) for s in prepared.sources), strict=True))
    if skipped or job.skip_bad is not None:
        files = sum(source.skipped > 0 for source in prepared.sources)
        where = (
            f", in {files:,} of {len(prepared.sources):,} files; {MANIFEST} says how many of each" if skipped else ""
        )
        yield f"skipped as bad: {skipped:,} of {lines:,} lines{where}"


def _split_rows(job: Job, prepared: Prepared) -> Iterator[Sequence[str]]:
    labels = list(prepared.splits["train"].positives)
    column = (f"{job.split.column} from .. to",) if isinstance(job.split, ByTime) else ()
    yield "split", "rows", *(f"positive: {label}" for label in labels), *column
    asked = asked_for(job.split)
    for name in SPLITS:
        split = prepared.splits[name]
        if split.rows or name in asked:
            rates = (f"{split.positives[label]:,} ({split.positive_rate.get(label, 0):.2%})" for label in labels)
            span = (f"{split.span[0]} .. {split.span[1]}" if split.span else "-",) if column else ()
            yield name, f"{split.rows:,}", *rates, *span


def aligned(rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: the first column is left-aligned, the others right-aligned."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        yield "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))])
