"""A commit opened for reading: its workflow, its features, and its step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.commits.manifest import Manifest
from pipeline.commits.reading import HeldCommit, hold
from pipeline.commits.run_state import RunState, newest_state
from pipeline.data.files import SchemaCheck, columns_of, resolve
from pipeline.data.identity import files_in
from pipeline.data.side_files import FOLDER, with_copies
from pipeline.features.times import TimeInput
from pipeline.files.description import Description
from pipeline.files.find import named, place_of
from pipeline.files.flat import open_file
from pipeline.messages.uris import is_remote
from pipeline.serving.features import Features, checked_workflow, features_of
from pipeline.settings import SPLITS
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.layout import RowLayout
from pipeline.workflow import Workflow, load

SAMPLED = 8
"""Number of files whose statistics are read for the years of times."""


@dataclass(frozen=True, slots=True)
class OpenedCommit:
    held: HeldCommit
    workflow: Workflow
    """The commit's workflow; its model class belongs to this package or comes from the user's file."""
    state: RunState
    layout: RowLayout
    features: Features

    @property
    def manifest(self) -> Manifest:
        return self.held.manifest

    @property
    def description(self) -> Description:
        """Description of the columns of the training data."""
        of = self.features
        return Description(self.state.data["train"].described, canonical=of.canonical, years=of.years)

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def speed(self) -> DiskSpeed:
        """Disk speed that the run measured."""
        return self.state.speed.of_disk

    def first_rows(self, most: int) -> pa.Table:
        """Return the model's inputs in at most `most` rows, and at least two, of the test split, or else of validation
        or training. Raises ValueError, OSError or ArrowException if they cannot be read."""
        data, features = self.workflow.data, self.features
        columns = [column for column in columns_of(data) if column.has_rows or column.number or column.sequence]
        for split in reversed(SPLITS):
            for path in resolve(data, split, self.description):
                with open_file(path) as file:
                    SchemaCheck(columns, features.kinds).check(path, file.schema_arrow)
                    batch = next(file.iter_batches(most, columns=features.reads(), use_threads=False), None)
                    if batch is not None and len(batch) > 1:
                        return pa.Table.from_batches([batch])
        raise ValueError("no file has two rows")


def open_commit(run_dir: Path, which: str | int | None = None, workflow: Path | Workflow | None = None) -> OpenedCommit:
    """Open a commit (see `hold`) for reading. `workflow`: the workflow or its file, needed if it defines the model
    class. Raises ValueError if there is no such commit or the file does not match it, and Damaged if the commit is
    damaged."""
    given = load(workflow) if isinstance(workflow, Path) else workflow
    held = hold(run_dir, which)
    try:
        if not (run_dir / "table.zarr").is_dir():
            raise ValueError(
                f"{run_dir} has no table.zarr: a study of `pipeline tune` deletes the tables of all trials but the "
                "best (--keep-tables); name another run, or train this workflow again"
            )
        state = newest_state([held.manifest])
        checked = checked_workflow(state.workflow, given, code=state.code)
        storage = checked.storage.model_copy(update={"chunk_rows": held.manifest.chunk_rows})
        checked = checked.model_copy(update={"storage": storage})
        layout = RowLayout.of(held.manifest.row)
        # The definition keeps the user's file names; the opened workflow reads the run's copies.
        train = state.data["train"]
        features = features_of(checked, layout.first_order, train.described, state.side_files, bool(train.canonical))
        names = (
            [file["path"] for file in files_in(held.manifest.state["data"]["train"], run_dir)] if features.times else []
        )
        years = years_of(features.times.values(), names, checked.data.root)
        features = features.model_copy(update={"years": years})
        checked = checked.model_copy(update={"data": with_copies(checked.data, state.side_files, run_dir / FOLDER)})
        return OpenedCommit(held, checked, state, layout, features)
    except BaseException:
        held.close()
        raise


def years_of(times: Collection[TimeInput], files: Sequence[str], root: Path) -> dict[str, tuple[int, int]]:
    """First and last year of each column in the statistics of some of the files, as far as they are still there. Files
    in a store are not read, since every command could have to wait for it."""
    chosen = {n * (len(files) - 1) // (SAMPLED - 1) for n in range(SAMPLED)} if files and times else {}
    found: dict[str, list[int]] = {time.name: [] for time in times}
    for file in [named(place, root) for n in sorted(chosen) if not is_remote(place := place_of(files[n], root))]:
        with suppress(ValueError, OSError, OverflowError, pa.ArrowException), open_file(file) as opened:
            for time in times:
                ends = [end for s in opened.statistics(time.name) if s and s.has_min_max for end in (s.min, s.max)]
                found[time.name] += [year for end in ends if (year := time.year(end)) is not None]
    return {name: (min(years), max(years)) for name, years in found.items() if years}
