"""Everything that is known of a run before it begins: computed once, and taken from here by whatever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.data.synthetic import ensure
from pipeline.device.device import Described
from pipeline.machine.threads import share_of
from pipeline.preflight.check_memory import check_memory
from pipeline.preflight.check_model import DenseFacts, check_model
from pipeline.preflight.first_window import rehearse
from pipeline.preflight.remarks import remarks
from pipeline.preflight.sizes import Fit, in_bytes
from pipeline.storage.layout import RowLayout
from pipeline.training.build import row_layout
from pipeline.workflow import Storage, Workflow


@dataclass(frozen=True, slots=True)
class Setup:
    workflow: Workflow
    """As each worker trains it."""
    world: int
    """Number of workers."""
    storage: Storage
    """The workflow's caps; the device's is a size here, whatever it was given as."""
    row: RowLayout
    agenda: Agenda
    fit: Fit


def set_up(
    workflow: Workflow, device: Described, say: Callable[[str], None], world: int = 1, here: bool = True
) -> tuple[Setup, Source]:
    """Check data, model and memory, and divide the caps. Nothing is trained or written, but synthetic data is made
    once. `here`: all workers are on this machine. `say` is told what is odd, or smaller than was asked for."""
    row = row_layout(workflow)
    dense = check_model(workflow, row)
    storage = in_bytes(workflow.storage, device.free_bytes())
    check_memory(storage, device, world if here else 0)
    ensure(workflow.data)
    source = Source(workflow.data, workflow.seed, share_of(workflow.schedule.threads), workflow.metrics.group)
    for remark in remarks(workflow.data):
        say(f"warning: {remark}")
    agenda = agenda_of(workflow, source.num_examples, dense, world)
    fit = rehearse(workflow, storage, source, agenda, row.num_bytes, dense.num_bytes, say, device.on_gpu, world)
    return Setup(workflow, world, storage, row, agenda, fit), source


def agenda_of(workflow: Workflow, num_examples: Mapping[str, int], dense: DenseFacts, world: int = 1) -> Agenda:
    """The blocks of a run of so many workers."""
    schedule = workflow.schedule
    min_last_batch = dense.min_last_batch(schedule.batch_size, world)
    return Agenda(num_examples, schedule.batch_size, schedule.epochs, schedule.plateau is not None, min_last_batch)
