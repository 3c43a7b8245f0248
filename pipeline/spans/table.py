"""Table of span scores, each by the model trained on the previous spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.spans.guard import span_scores

LAST = 31
"""Maximum number of spans in the table: the last ones."""
SHOWN = ("auc", "ne", "calibration", "mse", "mae")


def span_table(epochs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of the table; empty if no span was scored. `epochs`: entries of a history, or of `result.json`."""
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
    return lines
