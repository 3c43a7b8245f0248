"""Everything that is known about a run before it begins, computed once for all that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.data.agenda import Agenda
from pipeline.data.source import Scoring, Source
from pipeline.data.synthetic import ensure
from pipeline.device.device import Described
from pipeline.machine.threads import share_of
from pipeline.preflight.check_compiler import check_compiler
from pipeline.preflight.check_memory import check_budget, check_memory
from pipeline.preflight.check_model import DenseFacts, check_model, fast_in_bfloat16
from pipeline.preflight.checked import Checked
from pipeline.preflight.chosen_caps import complete
from pipeline.preflight.first_window import rehearse
from pipeline.preflight.remarks import remarks
from pipeline.preflight.sizes import Fit, with_device_in_bytes
from pipeline.settings.caps import CapSizes
from pipeline.storage.layout import RowLayout
from pipeline.training.build import row_layout
from pipeline.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Setup:
    workflow: Workflow
    """The workflow as each worker trains it."""
    world: int
    """Number of workers."""
    storage: CapSizes
    """The workflow's caps, and those that were chosen."""
    row: RowLayout
    agenda: Agenda
    fit: Fit
    scoring: Scoring | None = None
    """Input of a scoring; None: training on the splits of the workflow."""


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
    dense = check_model(workflow, row, say)
    storage = with_device_in_bytes(workflow.storage, device.free_bytes())
    check_memory(storage, device, world if here else 0)
    check_budget(storage.memory, world if here else 0)
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
    return Checked(workflow, world, storage, row, dense, source, agenda, here)


def divide_caps(
    c: Checked,
    device: Described,
    say: Callable[[str], None],
    run_dir: Path | None = None,
    scoring: Scoring | None = None,
) -> Setup:  # fmt: skip
    """Choose the caps that are left out, and divide all, by the first window. `say` is called with what was chosen, and
    with the look-ahead and block size if they are smaller than the workflow's. Raises ValueError if a cap, or the
    memory for those that are chosen, is too small."""
    c, caps = complete(c, device, say, run_dir)
    schedule = c.workflow.schedule.model_copy(update=asdict(c.pace) if c.pace else {})
    fit = rehearse(
        c.workflow.model_copy(update={"schedule": schedule}), caps, c.source, c.agenda, c.row.num_bytes,
        c.dense.num_bytes, say, device.on_gpu, c.world,
    )  # fmt: skip
    return Setup(c.workflow, c.world, caps, c.row, c.agenda, fit, scoring)


def set_up_scoring(
    workflow: Workflow, device: Described, say: Callable[[str], None], scoring: Scoring, source: Source, step: int,
    world: int = 1,
) -> Setup:  # fmt: skip
    """Check model and memory for scoring the files of `source` with the model as of `step`, as `set_up` does for
    training."""
    row = row_layout(workflow)
    dense = check_model(workflow, row, say)
    # A scoring moves no rows, so no policy needs to know coming keys.
    clock = workflow.storage.model_copy(update={"device_policy": "clock", "host_policy": "clock"})
    storage = with_device_in_bytes(clock, device.free_bytes())
    check_memory(storage, device, world)
    agenda = Agenda(source.num_examples, workflow.schedule.batch_size, 1, steps_before=step)
    return divide_caps(Checked(workflow, world, storage, row, dense, source, agenda), device, say, scoring=scoring)


def agenda_of(workflow: Workflow, num_examples: Mapping[str, int], dense: DenseFacts, world: int = 1) -> Agenda:
    """Make the agenda of a run with `world` workers."""
    schedule = workflow.schedule
    min_last_batch = dense.min_last_batch(schedule.batch_size, world)
    return Agenda(num_examples, schedule.batch_size, schedule.epochs, schedule.plateau is not None, min_last_batch)
