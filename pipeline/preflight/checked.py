"""Facts about a run before it starts: the value that each pass of the set-up takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.data.agenda import START, Agenda
from pipeline.data.identity import Begun
from pipeline.data.source import Scoring, Source
from pipeline.device.device import Described
from pipeline.preflight.check_model import DenseFacts
from pipeline.preflight.sizes import Fit
from pipeline.records import Block
from pipeline.settings.caps import Storage
from pipeline.spans.passes import SPAN
from pipeline.storage.layout import RowLayout
from pipeline.workflow import Workflow

LATER: Any = None
"""Value of a field until its pass has run."""


@dataclass(frozen=True, slots=True)
class Budget:
    """RAM of a worker's process from which omitted caps were chosen, in bytes."""

    limit: int
    planned: int
    """Bytes that all caps, given and chosen, and the rest of the process take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run as requested, followed by the results of each pass (see `setup`)."""

    workflow: Workflow
    """The workflow as each worker trains it."""
    device: Described
    say: Callable[[str], None]
    """Called with warnings, and with the values that were chosen."""
    world: int = 1
    """Number of workers."""
    here: bool = True
    """True if all workers are on this machine."""
    run_dir: Path | None = None
    """Run directory; the free space of its disk limits the log. None: no limit."""
    begun: Begun | None = None
    """Data of the run to resume (see `files_of_splits`)."""
    scoring: Scoring | None = None
    """Input of a scoring; None: training on the splits of the workflow."""
    storage: Storage
    """The workflow's undivided caps. After the pass `memory`, the device's is in bytes; after `caps`, none is
    omitted."""
    row: RowLayout = LATER
    dense: DenseFacts = LATER
    source: Source = LATER
    agenda: Agenda = LATER
    budget: Budget | None = None
    """None: no cap was chosen."""
    pace: tuple[int, int] | None = None
    """Maximum look-ahead and batches per block that were chosen with the caps; None: the workflow's."""
    fit: Fit = LATER
    rows_before: int = 0
    """Maximum number of initial rows (`Workflow.init_from`)."""
    keys_before: int = 0
    """Number of keys in a worker's map from the start: those of the commit that is scored or resumed."""

    def first_blocks(self, num_blocks: int | None, block_batches: int) -> Iterator[Block]:
        """The first blocks to be trained or scored; None: all of them. For a run with spans, these start at its current
        position, since the files of earlier spans may be gone; if nothing is left, they are those of the last span that
        waits or, if none does, of the last evaluation; a run without spans then has those of the last pass."""
        at = self.begun.at if self.begun else None
        if begin := self.agenda.block_at(at or START, block_batches):
            return islice(self.agenda.blocks(block_batches, begin), num_blocks)
        passes = self.agenda.passes
        others = [leg for leg in self.agenda.legs if leg.span is None or leg.split not in (SPAN, "train")]
        last = ((passes.waiting if passes else []) or others)[-1:]
        return islice((block for leg in last for block in self.agenda.blocks_of(leg, block_batches)), num_blocks)
