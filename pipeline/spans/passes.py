"""The passes of a run over its data, in order: epochs over a fixed set of files, or spans in order of arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.records import Block
from pipeline.workflow import Workflow

if TYPE_CHECKING:
    from pipeline.spans.calendar import Calendar

SPAN = "span"
"""Name, used like that of a split, for a span of the training data that is scored before training on it."""
ARRIVAL = "arrival"
"""The same for a span that waits for its labels (see `Metrics.score_arrivals`)."""
UNJUDGED = ("train", ARRIVAL)
"""Names of passes whose metrics are not those of a run."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One pass over one split, or over one span of the training split."""

    split: str
    epoch: int
    """Number of the epoch, or of the pass over the span."""
    span: int | None = None
    """Number of the span, from 0; for an evaluation of another split, that of the last span trained on."""

    @staticmethod
    def of(block: Block) -> Leg:
        """The pass that a block belongs to."""
        return Leg(block.split, block.epoch, block.span)


def epoch_legs(num_examples: Mapping[str, int], epochs: int, test_apart: bool) -> list[Leg]:
    """The passes over a fixed set of files. `num_examples`: number of examples of each split. `test_apart`: omit the
    test."""
    evaluates = bool(num_examples.get("validation"))
    splits = ("train", "validation") if evaluates else ("train",)
    legs = [Leg(split, epoch) for epoch in range(epochs) for split in splits]
    return legs + [Leg("test", epochs - 1)] * bool(num_examples.get("test") and not test_apart)


@dataclass(frozen=True, slots=True)
class SpanPasses:
    """The passes over spans that are due, each scored before it is trained on. The passes of a calendar are a prefix of
    those of any extended calendar, except for the test, which comes last."""

    num_rows: tuple[int, ...]
    num_scored: tuple[int, ...]
    """Number of rows of each span, and of those that are scored."""
    arrivals: tuple[tuple[int, ...], ...]
    """See `Calendar.arrivals`."""
    epochs: int
    """Number of passes over each span."""
    scored: bool
    """True if each span is scored when it is due."""

    @property
    def num_due(self) -> int:
        """Number of spans that are due. The others, which follow them, wait for their labels."""
        return sum(map(len, self.arrivals))

    @property
    def waiting(self) -> list[Leg]:
        """A pass over each span that is not due."""
        return [Leg(ARRIVAL, 0, span) for span in range(self.num_due, len(self.num_rows))]

    def legs(self, num_examples: Mapping[str, int]) -> list[Leg]:
        """Each pass, in order. `num_examples`: number of examples of each other split."""
        legs: list[Leg] = []
        for due in filter(None, self.arrivals):
            for span in due:
                legs += [Leg(SPAN, 0, span)] if self.scored and self.num_scored[span] else []
                legs += [Leg("train", epoch, span) for epoch in range(self.epochs)]
            if num_examples.get("validation"):
                legs.append(Leg("validation", self.epochs - 1, due[-1]))
        if self.num_due and num_examples.get("test"):
            legs.append(Leg("test", self.epochs - 1, self.num_due - 1))
        return legs


def span_passes(workflow: Workflow, calendar: Calendar | None, scored: bool | None = None) -> SpanPasses | None:
    """The passes over the spans of a calendar; None without a calendar. `scored`: defaults to the workflow's
    setting."""
    scored = workflow.metrics.score_spans if scored is None else scored
    if calendar is None:
        return None
    arrivals = tuple(map(tuple, calendar.arrivals(workflow.data)))
    return SpanPasses(calendar.num_rows, calendar.num_scored, arrivals, workflow.schedule.epochs, scored)
