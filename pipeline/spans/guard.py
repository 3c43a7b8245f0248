"""The guard of a run over spans: it stops before a span that the model predicts far worse than those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import PipelineError
from pipeline.records import Block
from pipeline.spans.passes import SPAN

GUARDED_SPANS = 7
"""Number of scored spans whose mean a span is compared with; fewer at the beginning of a run."""
EXIT_CODE = 3
"""Exit code of `pipeline run` after the guard stopped it."""


class GuardStopped(PipelineError):
    """The guard ended a run, at a commit of the model that scored the span."""


def span_scores(epochs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Entries of a history (`History.epochs`) that are scores of spans, in order; the last one of each span."""
    return list({entry["span"]: entry for entry in epochs if entry["split"] == SPAN}.values())


def check_guard(block: Block, epochs: Sequence[Mapping[str, Any]], guard: float | None) -> None:
    """Raises GuardStopped if a block begins the training of a span after a score that the guard refuses. `epochs`: see
    `History.epochs`."""
    begins = block.trains and block.span is not None and block.first_batch == 0 and block.epoch == 0
    if begins and epochs and epochs[-1]["split"] == SPAN and (why := why_stopped(epochs, guard)):
        raise GuardStopped(why)


def why_stopped(epochs: Sequence[Mapping[str, Any]], guard: float | None) -> str | None:
    """Say why a run must not train on the span that was scored last; None if it may. Spans that were scored before the
    model was trained on anything do not count, nor do those whose normalized entropy is undefined."""
    scores = span_scores(epochs)
    if guard is None or not scores:
        return None
    *before, last = scores
    known = [entry["ne"] for entry in before if entry["trained"] and math.isfinite(entry["ne"])][-GUARDED_SPANS:]
    if not known or not math.isfinite(last["ne"]):
        return None
    mean = sum(known) / len(known)
    if last["ne"] <= mean + guard:
        return None
    spans = f"the {len(known)} spans" if len(known) > 1 else "the span"
    return (
        f"stopped by the guard: span {last['span']} has a normalized entropy of {last['ne']:.5f}, which exceeds the "
        f"mean of {spans} before it, {mean:.5f}, by more than metrics.guard, {guard}. The span was not trained on; "
        "check its data (`pipeline doctor`), or train on it anyway with --set metrics.guard=null"
    )
