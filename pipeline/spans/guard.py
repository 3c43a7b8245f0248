"""The guard of a run over spans: stops before a span that the model predicts far worse than the previous ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pipeline.errors import PipelineError
from pipeline.records import Block
from pipeline.spans.passes import SPAN

GUARDED_SPANS = 7
"""Number of previous scored spans in the mean that a span is compared with; fewer at the start of a run."""
EXIT_CODE = 3
"""Exit code of `pipeline run` if the guard stopped it."""


class GuardStopped(PipelineError):
    """The guard ended a run, at a commit of the model that scored the span."""


def span_scores(epochs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Entries of a history (`History.epochs`) that are span scores, in order; only the last one for each span."""
    last = {entry["span"]: number for number, entry in enumerate(epochs) if entry["split"] == SPAN}
    return [epochs[number] for number in sorted(last.values())]


def check_guard(
    block: Block, spans: Mapping[int | None, str], epochs: Sequence[Mapping[str, Any]], guard: float | None,
    changes: Callable[[int], str],
) -> None:  # fmt: skip
    """Raises GuardStopped if a block starts the training on a span whose score the guard rejects. `spans`, `epochs`:
    see `History`. `changes`: gives sentences on what changed in a span (see `pipeline.spans.changes`)."""
    if block.trains and block.span is not None and block.first_batch == 0 and block.epoch == 0:
        label = spans[block.span]
        if why := why_stopped(label, [*spans.values()], epochs, guard):
            raise GuardStopped(
                f"{why}{changes(block.span)} The span was not trained on; check how its labels and columns were made, "
                f"and correct its files, or train on it as it is with --accept {label}"
            )


def why_stopped(
    label: str, spans: Collection[str], epochs: Sequence[Mapping[str, Any]], guard: float | None
) -> str | None:
    """Return sentences with the reason why a run must not train on the span `label`, which was scored last; None if it
    may. Of others, only the scores of `spans` count, which are not set aside, and none before any training, nor an
    undefined one."""
    scores = [entry for entry in span_scores(epochs) if entry["span"] in spans]
    if guard is None or not scores or scores[-1]["span"] != label:
        return None
    *before, last = scores
    known = [entry for entry in before if entry["trained"] and math.isfinite(entry["ne"])][-GUARDED_SPANS:]
    if not known or not math.isfinite(last["ne"]):
        return None
    means = {name: sum(one[name] for one in known) / len(known) for name in ("ne", "examples", "calibration")}
    mean = means["ne"]
    if last["ne"] <= mean + guard:
        return None
    spans = f"the {len(known)} spans" if len(known) > 1 else "the span"
    return (
        f"stopped by the guard: span {last['span']} has a normalized entropy of {last['ne']:.5f}, which exceeds the "
        f"mean of {spans} before it, {mean:.5f}, by more than metrics.guard, {guard}. It has {last['examples']:,} "
        f"rows (before: {means['examples']:,.0f}), and its mean prediction is {last['calibration']:.3f} times its mean "
        f"label (before: {means['calibration']:.3f})."
    )
