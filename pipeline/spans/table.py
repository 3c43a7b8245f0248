"""Table of span scores, each by the model trained on the previous spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.spans.guard import span_scores

LAST = 31
"""Maximum number of spans in the table: the last ones."""
SHOWN = ("auc", "ne", "calibration", "mse", "mae")


def span_table(epochs: Sequence[Mapping[str, Any]], out_of_place: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Lines of the table, and a line for each number of rows out of place; empty if no span was scored. `epochs`:
    entries of a history, or of `result.json`. `out_of_place`: see `counted`."""
    scores = span_scores(epochs)
    if not scores:
        return []
    metrics = [name for name in SHOWN if any(isinstance(entry.get(name), float) for entry in scores)]
    cells = [("span", "examples", "trained before", *metrics)]
    for entry in scores[-LAST:]:
        values = (entry.get(name) for name in metrics)
        shown = ("-" if value is None or value != value else f"{value:.5f}" for value in values)
        cells.append((str(entry["span"]), f"{entry['examples']:,}", f"{entry['trained']:,}", *shown))
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    more = f", the last {LAST} of {len(scores):,}" if len(scores) > LAST else ""
    lines = [f"spans, each scored before it was trained on{more}:"]
    for first, *others in cells:
        right = "  ".join(map(str.rjust, others, wide[1:]))
        lines.append(f"  {first:<{wide[0]}}  {right}")
    for rows in out_of_place[-LAST:]:
        said = f"trained on with {rows['trained_with']}" if rows["trained_with"] else "left out"
        lines.append(f"  {rows['span']}: {rows['rows']:,} rows {rows['kind']}, {said}")
    return lines
