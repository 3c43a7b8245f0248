"""Everything that is known about a run before it begins, computed once for all that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.data.agenda import Agenda
from pipeline.data.source import Scoring, Source
from pipeline.data.synthetic import ensure
from pipeline.device.device import Described
from pipeline.machine.threads import share_of
from pipeline.preflight.check_compiler import check_compiler
from pipeline.preflight.check_memory import check_memory
from pipeline.preflight.check_model import DenseFacts, check_model, fast_in_bfloat16
from pipeline.preflight.first_window import rehearse
from pipeline.preflight.remarks import remarks
from pipeline.preflight.sizes import Fit, with_device_in_bytes
from pipeline.storage.layout import RowLayout
from pipeline.training.build import row_layout
from pipeline.workflow import Storage, Workflow


@dataclass(frozen=True, slots=True)
class Setup:
    workflow: Workflow
    """The workflow as each worker trains it."""
    world: int
    """Number of workers."""
    storage: Storage
    """The workflow's caps; the device's is always a size here, also if the workflow has a share."""
    row: RowLayout
    agenda: Agenda
    fit: Fit
    scoring: Scoring | None = None
    """Input of a scoring; None: training on the splits of the workflow."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A workflow whose data, model and memory were checked, before its caps are divided."""

    workflow: Workflow
    world: int
    storage: Storage
    row: RowLayout
    dense: DenseFacts
    source: Source
    agenda: Agenda


def set_up(
    workflow: Workflow, device: Described, say: Callable[[str], None], world: int = 1, here: bool = True
) -> tuple[Setup, Source]:
    """Check data, model and memory, and divide the caps: `check` and `divide_caps`."""
    checked = check(workflow, device, say, world, here)
    return divide_caps(checked, device, say), checked.source


def check(
    workflow: Workflow, device: Described, say: Callable[[str], None], world: int = 1, here: bool = True
) -> Checked:
    """Check data, model and memory. Nothing is trained, and nothing is written except synthetic data, once. `here`:
    True if all workers are on this machine. `say` is called with warnings. Raises ValueError if anything is wrong."""
    row = row_layout(workflow)
    dense = check_model(workflow, row)
    storage = with_device_in_bytes(workflow.storage, device.free_bytes())
    check_memory(storage, device, world if here else 0)
    if workflow.model.compile and here:
        check_compiler(device.on_gpu)
    if workflow.model.precision == "bfloat16" and here and not (device.on_gpu or fast_in_bfloat16()):
        say(
            "warning: model.precision is bfloat16, and this processor has no instructions for it, so that the dense "
            "model may be ten times slower and more; set float32"
        )
    ensure(workflow.data)
    source = Source(workflow.data, workflow.seed, share_of(workflow.schedule.threads), workflow.metrics.group)
    for remark in remarks(workflow.data):
        say(f"warning: {remark}")
    agenda = agenda_of(workflow, source.num_examples, dense, world)
    return Checked(workflow, world, storage, row, dense, source, agenda)


def divide_caps(c: Checked, device: Described, say: Callable[[str], None]) -> Setup:
    """Divide the caps, by the first window. `say` is called with the look-ahead and block size if they are smaller than
    the workflow's. Raises ValueError if a cap is too small."""
    workflow, world, storage, row, agenda = c.workflow, c.world, c.storage, c.row, c.agenda
    fit = rehearse(workflow, storage, c.source, agenda, row.num_bytes, c.dense.num_bytes, say, device.on_gpu, world)
    return Setup(workflow, world, storage, row, agenda, fit)


def set_up_scoring(
    workflow: Workflow, device: Described, say: Callable[[str], None], scoring: Scoring, source: Source, step: int,
    world: int = 1,
) -> Setup:  # fmt: skip
    """Check model and memory for scoring the files of `source` with the model as of `step`, as `set_up` does for
    training."""
    row = row_layout(workflow)
    dense = check_model(workflow, row)
    # A scoring moves no rows, so no policy needs to know coming keys.
    clock = workflow.storage.model_copy(update={"device_policy": "clock", "host_policy": "clock"})
    storage = with_device_in_bytes(clock, device.free_bytes())
    check_memory(storage, device, world)
    agenda = Agenda(source.num_examples, workflow.schedule.batch_size, 1, steps_before=step)
    fit = rehearse(workflow, storage, source, agenda, row.num_bytes, dense.num_bytes, say, device.on_gpu, world)
    return Setup(workflow, world, storage, row, agenda, fit, scoring)


def agenda_of(workflow: Workflow, num_examples: Mapping[str, int], dense: DenseFacts, world: int = 1) -> Agenda:
    """Make the agenda of a run with `world` workers."""
    schedule = workflow.schedule
    min_last_batch = dense.min_last_batch(schedule.batch_size, world)
    return Agenda(num_examples, schedule.batch_size, schedule.epochs, schedule.plateau is not None, min_last_batch)
