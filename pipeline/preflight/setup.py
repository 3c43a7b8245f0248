"""Set-up of a run: the passes from a workflow to sizes, in the order in which they run.

Each pass takes the facts found so far and returns them with its own results. It raises ValueError, with the numbers and
the setting to change, if something is wrong. `run` and `--explain` run all passes, `score` only those that it needs.
Nothing is trained, and nothing is written except synthetic data, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.data.agenda import Agenda
from pipeline.data.files import listings_of
from pipeline.data.identity import Begun
from pipeline.data.source import Scoring, Source
from pipeline.data.synthetic import ensure
from pipeline.device.device import Described
from pipeline.files.find import DataFile, form_of, matches, some
from pipeline.files.flat import open_file
from pipeline.machine.threads import share_of
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.preflight.check_model import (
    DenseFacts,
    check_budget,
    check_compiler,
    check_groups,
    check_memory,
    check_model,
    fast_in_bfloat16,
)
from pipeline.preflight.checked import Budget, Checked
from pipeline.preflight.chosen_caps import choose_caps
from pipeline.preflight.first_window import rehearse
from pipeline.preflight.sizes import Fit, most_evaluated, with_device_in_bytes
from pipeline.settings.caps import CapSizes, caps_of
from pipeline.settings.optimizer import Adam
from pipeline.spans.calendar import Calendar
from pipeline.spans.passes import span_passes
from pipeline.storage.key_map import bytes_for
from pipeline.storage.layout import RowLayout
from pipeline.storage.shards import most_keys
from pipeline.training.build import row_layout
from pipeline.workflow import Data, Workflow

Say = Callable[[str], None]


STEEP = 38
"""Value of lr * l2 / eps above which Adam's steps exceed the weight, so that the weight does not converge to zero."""


def model(c: Checked) -> Checked:
    """Build the model and try it on two made-up examples."""
    row, rows = row_layout(c.workflow), c.workflow.optimizer.rows
    if isinstance(rows, Adam) and rows.semantics == "dense" and (steep := rows.lr * rows.l2 / rows.eps) > STEEP:
        c.say(
            f"warning: optimizer.rows: lr * l2 / eps is {steep:,.0f}; above {STEEP}, rows that are absent for long are "
            "unstable in float32 with dense semantics; lower lr or l2, or raise eps"
        )
    return replace(c, row=row, dense=check_model(c.workflow, row, c.say))


def memory(c: Checked) -> Checked:
    """Check that the caps fit the memory of this machine and of the device."""
    storage = with_device_in_bytes(c.storage, c.device.free_bytes())
    check_memory(storage, c.device, c.world if c.here else 0)
    return replace(c, storage=storage)


def processor(c: Checked) -> Checked:
    """Check the RAM budget, the compiler and the precision on this machine, if it trains."""
    if not c.here:
        return c
    check_budget(c.storage.memory, c.world)
    if c.workflow.model.compile and c.workflow.data.sequences:
        c.say(
            "warning: model.compile has no effect with data.sequences, whose batches differ in size: the model is eager"
        )
    elif c.workflow.model.compile:
        check_compiler(c.device.on_gpu)
    if c.workflow.model.precision == "bfloat16" and not (c.device.on_gpu or fast_in_bfloat16()):
        c.say(
            "warning: model.precision is bfloat16, but this processor has no instructions for it, so the dense model "
            "may be ten or more times slower; set it to float32"
        )
    return c


def data(c: Checked) -> Checked:
    """Read the metadata of all files; generate synthetic data if the workflow asks for it."""
    workflow = c.workflow
    ensure(workflow.data)
    threads, metrics = share_of(workflow.schedule.threads), workflow.metrics
    source = Source(workflow.data, workflow.seed, threads, metrics, begun=c.begun)
    # The files of earlier spans may be gone, and those of spans that wait have other names.
    goes_on = c.begun is not None and "train" in c.begun.splits and source.calendar is not None
    looked_at = workflow.data.model_copy(update={"train": ()}) if goes_on else workflow.data
    for remark in (*source.notes, *remarks(looked_at, source.num_examples)):
        c.say(f"warning: {remark}")
    for line in source.set_aside:
        c.say(f"warning: {line}")
    if (held := source.identity["train"].held) and not source.set_aside:
        c.say(f"set aside: {', '.join(f'span {label} ({one.why})' for label, one in held.items())}")
    if (unread := source.identity["train"].unread) and not source.set_aside:
        c.say(f"files that are incomplete, cannot be read, or are copies: {len(unread):,}")
    return replace(c, source=source)


def agenda(c: Checked) -> Checked:
    """Count the batches of all epochs."""
    calendar = c.source.calendar
    return replace(c, agenda=agenda_of(c.workflow, c.source.num_examples, c.dense, c.world, calendar))


def groups(c: Checked) -> Checked:
    """Check that the metrics within groups fit the memory of this machine."""
    most, workers = most_evaluated(c.workflow, c.agenda), c.world if c.here else 0
    check_groups(c.workflow, most, c.storage, c.device, workers)
    return c


def caps(c: Checked) -> Checked:
    """Choose the omitted caps."""
    return choose_caps(c) if c.storage.leaves_out else replace(c, storage=caps_of(c.storage))


def first_window(c: Checked) -> Checked:
    """Read the first window, and divide the caps for the largest pace that they allow."""
    return replace(c, fit=rehearse(c))


CHECKS = (model, memory, processor, data, agenda, groups)
SIZES = (caps, first_window)


def after(passes: Iterable[Callable[[Checked], Checked]], c: Checked) -> Checked:
    """Run these passes and return the result."""
    for each in passes:
        c = each(c)
    return c


def check(
    workflow: Workflow, device: Described, say: Say, world: int = 1, here: bool = True, run_dir: Path | None = None,
    begun: Begun | None = None,
) -> Checked:  # fmt: skip
    """Check data, model and memory. Arguments are as the fields of `Checked`. Raises ValueError if anything is
    wrong."""
    return after(CHECKS, Checked(
        workflow=workflow, device=device, say=say, world=world, here=here, run_dir=run_dir, storage=workflow.storage,
        begun=begun, keys_before=most_keys(begun.keys_of_shards, world) if begun else 0,
    ))  # fmt: skip


def divide_caps(c: Checked) -> Setup:
    """Choose the omitted caps, and divide all caps. Raises ValueError if a given cap, or the memory for the chosen
    ones, is too small."""
    c = after(SIZES, c)
    return Setup(c.workflow, c.world, caps_of(c.storage), c.row, c.agenda, c.fit, c.scoring, c.budget)


def set_up(workflow: Workflow, device: Described, say: Say, world: int = 1, here: bool = True) -> tuple[Setup, Source]:
    """Run all passes for training."""
    checked = check(workflow, device, say, world, here)
    return divide_caps(checked), checked.source


def set_up_scoring(
    workflow: Workflow, device: Described, say: Say, scoring: Scoring, source: Source, step: int, keys: int,
    world: int = 1,
) -> Setup:  # fmt: skip
    """Run the passes for scoring the files of `source` with the model as of `step`. `keys`: maximum number of the
    commit's keys that any one worker owns; the worker's map must have room for them regardless of the files. Raises
    ValueError if the map's cap is too small for them."""
    if workflow.storage.map is not None and workflow.storage.map < (needed := bytes_for(keys)):
        raise ValueError(
            f"storage.map is {format_size_down(workflow.storage.map)}, but the {keys:,} keys of the commit need more; "
            f'give a workflow with storage.map="{format_size_up(needed)}", or without it, with --workflow FILE'
        )
    # Scoring moves no rows, so no policy needs to know future keys.
    storage = workflow.storage.model_copy(update={"device_policy": "clock", "host_policy": "clock"})
    of_files = Agenda(source.num_examples, workflow.schedule.batch_size, 1, steps_before=step)
    return divide_caps(after((model, memory), Checked(
        workflow=workflow, device=device, say=say, world=world, scoring=scoring, storage=storage, source=source,
        agenda=of_files, keys_before=keys,
    )))  # fmt: skip


def agenda_of(
    workflow: Workflow, num_examples: Mapping[str, int], dense: DenseFacts, world: int = 1,
    calendar: Calendar | None = None,
) -> Agenda:  # fmt: skip
    """Make the agenda of a run with `world` workers. `calendar`: spans of the training data, if it has spans."""
    schedule = workflow.schedule
    min_last_batch = dense.min_last_batch(schedule.batch_size, world)
    return Agenda(
        num_examples, schedule.batch_size, schedule.epochs, schedule.plateau is not None, min_last_batch,
        passes=span_passes(workflow, calendar),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything known about a run before it starts, as passed to its workers."""

    workflow: Workflow
    """The workflow as each worker trains it."""
    world: int
    """Number of workers."""
    storage: CapSizes
    """All caps, from the workflow or chosen."""
    row: RowLayout
    agenda: Agenda
    fit: Fit
    scoring: Scoring | None = None
    """Input of a scoring; None: training on the splits of the workflow."""
    budget: Budget | None = None
    """None: no cap was chosen."""


def remarks(data: Data, num_examples: Mapping[str, int]) -> Iterator[str]:
    """Yield one line per remark. `num_examples`: number of examples of each split. The files must have passed
    `SchemaCheck`."""
    for split, listing in (listings := listings_of(data)).items():
        if text := [file for file in listing.left_out if form_of(file)]:
            yield f"data.{split}: next to Parquet {len(text):,} other files are left out: {some(text)}"
        if listing.files and not num_examples[split]:
            yield f"data.{split}: its files have no rows, so that nothing is evaluated on them; name files that have"
        for pattern in getattr(data, split):
            found = matches(pattern, data.root)
            folders = [path for path in map(Path, found) if path.is_dir()]
            if 0 < len(folders) < len(found):
                names = ", ".join(path.name for path in folders[:3]) + (", ..." if len(folders) > 3 else "")
                yield (
                    f"data.{split}: {pattern!r} matches {len(found):,} names, of which {len(folders):,} are folders "
                    f"({names}): the Parquet files in them are read, too"
                )
    for label in data.labels:
        value = _only_value(listings["train"].files, label)
        if value is not None:
            yield (
                f"all training labels of {label!r} are {value:g}: there is nothing to learn; look at data.labels and "
                "data.train"
            )


def _only_value(files: Iterable[DataFile], label: str) -> float | None:
    """Return the single value of a column if the footers show that it has only one, else None. Opens no more files than
    necessary."""
    seen: set[float] = set()
    for path in files:
        with open_file(path) as file:
            place = file.leaf(label)
            if place is None:
                return None
            for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
                statistics = group.column(place).statistics
                if group.num_rows == 0:
                    continue
                if statistics is None or not statistics.has_min_max:
                    return None
                # Arrow returns bytes for 16-bit floats.
                if not all(isinstance(value, (int, float)) for value in (statistics.min, statistics.max)):
                    return None
                # Footers store a minimum of zero as -0.0; adding 0.0 turns it into 0.0.
                seen |= {float(statistics.min) + 0.0, float(statistics.max) + 0.0}
                if len(seen) > 1:
                    return None
    return seen.pop() if seen else None
