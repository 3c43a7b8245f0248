"""Comparison of the doctor's findings with the planted faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.doctor.faults import Planted
from pipeline.workflow import Workflow


class Told(Protocol):
    """The parts of a finding that this benchmark reads."""

    @property
    def kind(self) -> str: ...
    @property
    def level(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def text(self) -> str: ...


Diagnose = Callable[[Workflow, Path | None, Callable[[str], None]], Sequence[Told]]


def the_doctor() -> Diagnose:
    """Return the doctor of the package."""
    from pipeline.doctor.diagnose import diagnose

    return diagnose


@dataclass(frozen=True)
class Verdict:
    """The doctor's findings in one copy, judged."""

    data: str
    """Name of the data set and the form of its copy."""
    planted: Planted | None
    """None for a clean copy, and for a control."""
    right: Sequence[Told]
    """Faults that were planted."""
    wrong: Sequence[Told]
    """Faults that were not."""
    remarks: Sequence[Told]

    @property
    def found(self) -> bool:
        return any(self.planted is not None and one.kind == self.planted.kind for one in self.right)


def judge(data: str, planted: Planted | None, findings: Sequence[Told]) -> Verdict:
    faults = [one for one in findings if one.level == "fault"]
    right = [one for one in faults if planted is not None and is_planted(planted, one)]
    wrong = [one for one in faults if one not in right]
    return Verdict(data, planted, right, wrong, [one for one in findings if one.level == "remark"])


WHOLE = ("shared_rows", "time_order", "label_rate", "second_epoch")
"""Kinds of faults that do not concern a single column, so the columns named by a finding do not matter."""


def is_planted(planted: Planted, finding: Told) -> bool:
    """True if the finding is the planted fault, or another fault that may correctly be reported for its columns.

    A finding about a copied column must name both columns; one about another column fault, a column that has it.
    """
    if finding.kind == planted.kind and planted.kind in WHOLE:
        return True
    if finding.kind not in (planted.kind, *planted.also):
        return False
    named, have = set(finding.columns), set(planted.columns)
    return have <= named if finding.kind == "copied_column" else bool(have & named)


def recall(verdicts: Sequence[Verdict], strength: float, kind: str | None = None) -> float | None:
    """Share of the faults of a strength that were found; None if there are none."""
    found = [
        one.found
        for one in verdicts
        if one.planted and one.planted.strength == strength and kind in (None, one.planted.kind)
    ]
    return sum(found) / len(found) if found else None


def precision(verdicts: Sequence[Verdict]) -> float:
    """Share of the reported faults that were planted; 1 if there are none."""
    right, wrong = (sum(len(getattr(one, side)) for one in verdicts) for side in ("right", "wrong"))
    return right / (right + wrong) if right + wrong else 1.0
