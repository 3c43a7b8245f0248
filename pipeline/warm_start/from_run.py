"""Rows and layers from a commit of another run; wide rows in the layout of the new run, and checks shared by all
sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.commits.flush import live_at
from pipeline.commits.reading import HeldCommit, hold
from pipeline.commits.reopen import read_commit
from pipeline.commits.run_state import RunState, newest_state
from pipeline.device.device import RAM
from pipeline.machine.limits import aligned_empty
from pipeline.machine.threads import Whole
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.optim.slab_rows import slab_rows
from pipeline.records import U32, U64, Array
from pipeline.settings.init_from import FromRun
from pipeline.storage.layout import KEY_WORDS, RowLayout, row_keys
from pipeline.storage.tier import Slab, check_keys, widened
from pipeline.training.dense_state import merge_dense
from pipeline.workflow import Data, Workflow, read_kept


def empty_rows(layout: RowLayout, keys_U: U64) -> U32:
    """[U, X] wide rows with these keys; all other words are 0."""
    rows_UX = np.zeros((len(keys_U), layout.wide.num_words), np.uint32)
    rows_UX[:, :KEY_WORDS] = np.ascontiguousarray(keys_U).view(np.uint32).reshape(-1, KEY_WORDS)
    return rows_UX


def check_width(name: str, found: int, row: RowLayout) -> None:
    """Raises ValueError if the width `found` of the vectors differs from that of the rows."""
    if found != row.embedding_dim:
        raise ValueError(
            f"init_from: {name} has vectors of {found} numbers, and model.embedding_dim is {row.embedding_dim}; set "
            f"model.embedding_dim to {found}, or name another source"
        )


def is_text(type_name: str) -> bool:
    """True if the Arrow type with this name is text or lists of text. Text and integers never have the same keys."""
    return any(word in type_name for word in ("string", "binary", "uuid"))


def convert(rows_UX: U32, there: RowLayout, here: RowLayout, with_state: bool) -> U32:
    """Convert rows [U, X] from another wide layout to that of the run: common parts are copied, others are 0.
    `with_state`: also copy the optimizer state; both layouts must then have the same optimizer."""
    out_UX, both = empty_rows(here, row_keys(rows_UX)), here.first_order and there.first_order
    for part_there, part_here in zip(there.wide.parts, here.wide.parts, strict=False):
        if part_here.name != "weights" and not with_state:
            break
        # The first values of a part belong to the embedding: one per weight, or a single one.
        embedding = part_here.size - here.first_order
        at, to = part_there.wide_at, part_here.wide_at
        out_UX[:, to : to + embedding] = rows_UX[:, at : at + embedding]
        if both:
            out_UX[:, to + embedding] = rows_UX[:, at + embedding]
    return out_UX


def made_by(data: Data, name: str) -> dict[str, Any]:
    """Settings by which features make a column, and those of its inputs; for a column of the files, its name."""
    feature = next((feature for feature in data.features if name in feature.makes), None)
    if feature is None:
        return {"column": name}
    settings = feature.model_dump(exclude={"name", "column", "columns", "computed"})
    if "take" in settings:
        settings["take"] = [part for part, made in settings["take"].items() if made == name]
    return settings | {"inputs": [made_by(data, read) for read in feature.reads]}


class RunOrigin:
    """A commit of another run, held while this object is open. Only metadata is read on opening; the key map is built
    when rows are read."""

    def __init__(self, given: FromRun, workflow: Workflow, row: RowLayout, types: Mapping[str, str]) -> None:
        """`row`: row layout of the new run; `types`: Arrow types of its columns, by name. Raises ValueError if the
        commit is missing or does not fit."""
        self._given, self._row = given, row
        self.held: HeldCommit = hold(given.run.expanduser(), given.commit)
        self.name = f"commit {self.held.number} of {given.run}"
        try:
            self._state: RunState = newest_state([self.held.manifest])
            self._there, self._layout = read_kept(self._state.workflow), RowLayout.of(self.held.manifest.row)
            check_width(self.name, self._layout.embedding_dim, row)
            if given.optimizer_state:
                self._check_state(workflow)
            self._remarks = [*self._of_tables(workflow, types)]
        except BaseException:
            self.close()
            raise
        self._num_rows = 0

    def _check_state(self, workflow: Workflow) -> None:
        there, here = self._there.optimizer.rows, workflow.optimizer.rows
        if there.kind != here.kind:
            raise ValueError(
                f"init_from.optimizer_state: {self.name} has the state of {there.kind!r}, and optimizer.rows.kind is "
                f"{here.kind!r}; set it to {there.kind!r}, or leave optimizer_state out to take weights alone"
            )
        if here.kind == "ftrl" and there != here:
            raise ValueError(
                f"init_from: {self.name} was trained with {there!r}, and optimizer.rows is {here!r}; a weight of Ftrl "
                "follows from its state and these settings, so make them equal"
            )

    def _of_tables(self, workflow: Workflow, types: Mapping[str, str]) -> Iterator[str]:
        """Yield sentences about tables and columns that do not match."""
        there, here = (
            {category.table_name: category.name for category in one.data.categories} for one in (self._there, workflow)
        )
        if others := [name for name in there if name not in here]:
            yield (
                f"warning: init_from: {self.name} has tables that this workflow does not have: {', '.join(others)}; "
                "their rows are taken, too, but never used"
            )
        if new := [name for name in here if name not in there]:
            yield f"init_from: tables that {self.name} does not have; their rows are all new: {', '.join(new)}"
        if there.keys().isdisjoint(here):
            raise ValueError(
                f"init_from: {self.name} has no table of this workflow: it has {', '.join(there)}, and data.categories "
                f"has {', '.join(here)}; name another run, or give categories its tables (table=)"
            )
        types_there = self._state.data["train"].types
        for table in there.keys() & here.keys():
            was, now = types_there.get(there[table], ""), types.get(here[table], "")
            if was and now and is_text(was) != is_text(now):
                yield (
                    f"warning: init_from: table {table!r} holds {was} in {self.name} and {now} here: text and "
                    "numbers never have the same keys, so none of its rows matches"
                )
            if not self._state.data["train"].canonical and ("binary[16]" in was or "uuid" in was):
                yield (
                    f"warning: init_from: table {table!r} of {self.name}, a run of an earlier version, has UUIDs in 16 "
                    "bytes, and this run reads them as text, so none of its rows matches; train that run again"
                )
        columns = [(f"table {table!r}", there[table], here[table]) for table in there if table in here]
        if self._given.layers:
            numbers = {number.name for number in self._there.data.numbers}
            columns += [("the layers", n.name, n.name) for n in workflow.data.numbers if n.name in numbers]
        for what, name_there, name_here in columns:
            made, making = made_by(self._there.data, name_there), made_by(workflow.data, name_here)
            # A column of the files may have another name.
            if made != making and ("kind" in made or "kind" in making):
                other = [name for name in {**made, **making} if made.get(name) != making.get(name)]
                yield (
                    f"warning: init_from: {what} of {self.name} knows column {name_there!r}, which was made with "
                    f"other {', '.join(other)} than {name_here!r} here, so its values may mean something else; make it "
                    "alike, give the category another table, or set layers=False for a number"
                )

    @property
    def max_rows(self) -> int:
        """Upper bound on the number of rows."""
        return self.held.manifest.live_rows

    def rows(self) -> Iterator[U32]:
        """Yield rows [U, X] in the run's wide layout, with last step and count 0. If several have the same key, the
        last one counts."""
        manifest, held = self.held.manifest, self.held
        with held.explaining():
            places, log = read_commit(held.run_dir, manifest, self._state.speed.of_disk)
            try:
                catch_up = self._catch_up()
                chunk_RW: U32 = aligned_empty((manifest.chunk_rows, self._layout.num_words), np.uint32)
                for chunk in places.chunks.live().tolist():
                    at, keys = live_at(places, log, chunk)
                    log.gather(at, chunk_RW[: len(at)])
                    check_keys(log, at, chunk_RW[: len(at)], keys)
                    held.check()
                    wide_UX = widened(self._layout, chunk_RW[: len(at)])
                    catch_up(wide_UX)
                    self._num_rows += len(at)
                    yield convert(wide_UX, self._layout, self._row, self._given.optimizer_state)
            finally:
                log.close()

    def _catch_up(self) -> Callable[[U32], None]:
        """Function that applies missed steps to wide rows."""
        there = self._there
        none = slab_rows(Slab(0, self._layout.num_words), self._layout, Whole(), RAM, there.seed)
        optimizer = RowOptimizer(there.optimizer, none, there.model.init_std, Whole(), RAM, False)
        optimizer.rates.load(self._saved())
        return optimizer.catch_up_on_host()

    def _saved(self) -> dict[str, Array]:
        return merge_dense(self.held.load_replicas())

    def layers(self) -> Mapping[str, Array]:
        """Dense part and its optimizer state, with the names used in commits; empty if none is to be taken."""
        return self._saved() if self._given.layers else {}

    def remarks(self) -> list[str]:
        """Sentences about what was taken and what did not match. Call after `rows` is exhausted. A warning starts with
        "warning: "."""
        state = "with" if self._given.optimizer_state else "without"
        taken = f"init_from: took {self._num_rows:,} rows of {self.name}, {state} their optimizer's state"
        if self._layout.first_order != self._row.first_order:
            taken += ", and without first-order weights, which only one of the two models has"
        return [taken, *self._remarks]

    def close(self) -> None:
        self.held.close()
