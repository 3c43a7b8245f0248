"""A workflow that passed the checks of its data, model and memory."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.preflight.check_model import DenseFacts
from pipeline.settings.caps import Storage
from pipeline.storage.layout import RowLayout
from pipeline.workflow import Workflow


@dataclass(frozen=True, slots=True)
class ChosenPace:
    """Maximum look-ahead, and maximum number of batches of a block."""

    look_ahead: int
    block_batches: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A workflow whose data, model and memory were checked, before its caps are divided."""

    workflow: Workflow
    world: int
    storage: Storage
    """The workflow's caps; the device's is not a share."""
    row: RowLayout
    dense: DenseFacts
    source: Source
    agenda: Agenda
    here: bool = True
    """True if all workers are on this machine."""
    pace: ChosenPace | None = None
    """The pace that was chosen with the caps; None: the workflow's."""
