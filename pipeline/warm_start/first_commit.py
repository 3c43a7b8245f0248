"""The first commit of a warm-started run: its rows, its dense part and its manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pipeline.commits.flush import part_of
from pipeline.commits.manifest import FORMAT, WITH_SPANS, Commits, Manifest
from pipeline.commits.reopen import clean, insert_chunks
from pipeline.device.device import RAM
from pipeline.kernels.narrow_rows import narrow_rows
from pipeline.messages.sizes import format_size, format_size_up
from pipeline.monitor.history import History
from pipeline.optim.dense import AVERAGE
from pipeline.optim.kstep import dense_of
from pipeline.optim.rates import Rates
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import Setup
from pipeline.records import RESERVED, U32, Array
from pipeline.settings.init_from import FromRun
from pipeline.storage.chunks import Chunks, max_chunks
from pipeline.storage.folder import Folder
from pipeline.storage.key_map import bytes_for, most_bytes_for
from pipeline.storage.layout import RowLayout, row_keys
from pipeline.storage.log import Log, TableFormat
from pipeline.storage.places import Caps, Places
from pipeline.storage.shards import Shards, shard_of
from pipeline.training.build import build_model
from pipeline.training.dense_state import ADAM_STATE, MODEL, OPTIMIZER, save_dense
from pipeline.warm_start.from_parquet import ParquetOrigin
from pipeline.warm_start.from_run import RunOrigin
from pipeline.workflow import Workflow

REPORT = "init_from.json"
"""File in the run directory that records what was taken."""
Origin = RunOrigin | ParquetOrigin
NAMED = 6
"""Maximum number of layers named in a sentence."""


@contextmanager
def open_origins(workflow: Workflow, row: RowLayout, types: Mapping[str, str]) -> Iterator[list[Origin]]:
    """Open the sources of the workflow, in order. `types`: Arrow types of the columns of the training data, by name.
    Raises ValueError if a source is missing or does not fit."""
    with ExitStack() as stack:
        origins: list[Origin] = []
        for given in workflow.init_from:
            if isinstance(given, FromRun):
                origins.append(RunOrigin(given, workflow, row, types))
            else:
                origins.append(ParquetOrigin(given, workflow, row, types))
            stack.callback(origins[-1].close)
        yield origins


def rows_to_take(checked: Checked) -> int:
    """Check the sources of a run before it starts, and return the maximum number of rows to take. Raises ValueError if
    a source is missing or does not fit."""
    types = checked.source.identity["train"].types
    with open_origins(checked.workflow, checked.row, types) as origins:
        return sum(origin.max_rows for origin in origins)


def begin(
    setup: Setup, types: Mapping[str, str], folder: Folder, commits: Commits, state: Mapping[str, Any]
) -> list[str]:  # fmt: skip
    """Write commit 1 of a run without commits. Returns sentences about what was taken. An interrupted call leaves no
    commit, and the next call starts over.

    `types`: see `open_origins`. `state`: description of the run (see `RunState`) and its initial position, for the
    manifest.
    """
    workflow, run_dir = setup.workflow, folder.path
    with open_origins(workflow, setup.row, types) as origins:
        _check_room(setup, sum(origin.max_rows for origin in origins))
        table = _Table(setup, folder)
        for origin in origins:
            for rows_UX in origin.rows():
                table.add(rows_UX)
        part = table.close()
        arrays, lines = dense_part(setup, {name: a for origin in origins for name, a in origin.layers().items()})
        said = [line for origin in origins for line in origin.remarks()] + lines
    if twice := table.num_added - part.live_rows:
        said.append(f"init_from: {twice:,} rows had the key of a later one, which was used")
    speed = {**asdict(folder.measured), "direct": workflow.storage.direct}
    commits.prune([])
    dense = (commits.write_dense(part.number, arrays),)
    folder.files.replace(run_dir / REPORT, [(json.dumps({"taken": said}, indent=1) + "\n").encode()])
    commits.publish(replace(
        part, dense=dense, state={**state, **History().state(), "speed": speed},
        format=FORMAT if state["position"].get("span") is None else WITH_SPANS,
    ))  # fmt: skip
    return [f"begins from elsewhere, with {part.live_rows:,} rows (init_from; also in {REPORT})", *said]


def _check_room(setup: Setup, num_rows: int) -> None:
    """Raises ValueError if a cap is too small for the initial rows of the run."""
    sizes, world = setup.fit.sizes, setup.world
    if bytes_for(num_rows) > world * sizes.map_bytes:
        needed = format_size_up(most_bytes_for(2 * num_rows) // world)
        raise ValueError(
            f"storage.map is {format_size(sizes.map_bytes)}, and init_from brings {num_rows:,} keys; set storage.map "
            f'to "{needed}", which holds twice as many'
        )
    shards = setup.workflow.workers.num_shards(world)
    chunks = max_chunks(num_rows, sizes.chunk_rows, shards)
    if 2 * chunks > world * sizes.disk_chunks:
        chunk_bytes = sizes.chunk_rows * (setup.row.num_bytes + 8)
        raise ValueError(
            f"storage.disk has room for {sizes.disk_chunks:,} chunks of rows, and init_from brings {num_rows:,} rows, "
            f'which fill {chunks:,}; set storage.disk to at least "{format_size_up(3 * chunks * chunk_bytes // world)}"'
        )


class _Table:
    """Writer of the run's table, with all shards. Its key map, which detects rows with the same key, stays in RAM until
    `close`."""

    def __init__(self, setup: Setup, folder: Folder) -> None:
        workflow, self._row, self._seed = setup.workflow, setup.row, setup.workflow.seed
        storage, self._chunk_rows = workflow.storage, setup.fit.sizes.chunk_rows
        shards = Shards.all(workflow.workers.num_shards(setup.world))
        path = folder.path / "table.zarr"
        clean(path, [], folder.files, shards)
        chunks = Chunks(self._chunk_rows, storage.log_multiple, storage.log_growth, shards)
        self._places = Places(0, 0, ("clock", "clock"), Caps(1 << 62, 1 << 62), chunks)
        table = TableFormat(self._row, self._chunk_rows, shards)
        self._log = Log(path, table, folder.measured, folder.files, None, storage.direct)
        self._waiting: list[list[U32]] = [[] for _ in range(shards.num)]
        """Rows of each shard that do not fill a chunk yet."""
        self.num_added = 0

    def add(self, rows_UX: U32) -> None:
        """Add wide rows. A row replaces an earlier one with the same key."""
        rows_UW = rows_UX
        if self._row.formats:
            rows_UW = np.zeros((len(rows_UX), self._row.num_words), np.uint32)
            at_U = np.arange(len(rows_UX), dtype=np.int32)
            narrow_rows(rows_UX, at_U, self._row.widening(), self._seed, 0, rows_UW)
        self.num_added += len(rows_UW)
        shard_U = shard_of(row_keys(rows_UW), len(self._waiting))
        for shard, waiting in enumerate(self._waiting):
            waiting.append(rows_UW[shard_U == shard])
            if sum(map(len, waiting)) >= self._chunk_rows:
                self._write(shard, self._chunk_rows)

    def _write(self, shard: int, at_least: int) -> None:
        """Write waiting rows of a shard as chunks until fewer than `at_least` remain."""
        rows_UW = np.concatenate(self._waiting[shard] or [np.empty((0, self._row.num_words), np.uint32)])
        while len(rows_UW) >= at_least:
            rows_RW, rows_UW = np.ascontiguousarray(rows_UW[: self._chunk_rows]), rows_UW[self._chunk_rows :]
            at_R = self._places.chunks.add(len(rows_RW), shard)
            self._log.scatter(at_R, rows_RW)
            keys_R = np.full(self._chunk_rows, RESERVED)
            keys_R[: len(rows_RW)] = row_keys(rows_RW)
            insert_chunks(self._places, [int(at_R[0]) // self._chunk_rows], lambda _: keys_R)  # noqa: B023
        self._waiting[shard] = [rows_UW]

    def close(self) -> Manifest:
        """Write the remaining rows and make all durable. Returns commit 1, without its dense part and state."""
        for shard in range(len(self._waiting)):
            self._write(shard, 1)
        self._log.sync()
        part = part_of(self._places, self._log, 1)
        self._log.close()
        return part


def dense_part(setup: Setup, found: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """Return the initial dense part, with the names used in commits, and sentences about its layers. `found`: layers
    and optimizer state of the sources."""
    workflow = setup.workflow
    model = build_model(workflow)
    dense = dense_of(model, workflow.optimizer, setup.agenda.steps_of_epoch)
    arrays = {
        name: np.array(value) for name, value in save_dense(model, dense.optimizer, dense.average).items()
        # Omitted, so that averages start from the initial weights.
        if not name.startswith(AVERAGE)
    }  # fmt: skip
    rates = Rates(workflow.optimizer.rows, RAM, each_step=False)
    rates.has_rows_before = True
    own = [name for name in arrays if name.startswith(MODEL)]
    layers = {name: found[name] for name in own if name in found and _like(found[name], arrays[name])}
    lines = _sentences(arrays, own, found, layers) if found else []
    if any(isinstance(one, FromRun) and one.optimizer_state for one in workflow.init_from):
        state = _state_of(layers, arrays, found, workflow.optimizer.merge is None)
        if layers and not state:
            lines.append("init_from: the dense optimizer's state was not taken, since it is that of another optimizer")
        layers |= state
    return {**arrays, **layers, **rates.save()}, lines


def _like(there: Array, here: Array) -> bool:
    return (there.shape, there.dtype) == (here.shape, here.dtype)


def _state_of(
    layers: Mapping[str, Array], arrays: Mapping[str, Array], found: Mapping[str, Array], is_adam: bool
) -> dict[str, Array]:
    """State of the dense optimizer for the parameters among the layers; empty if this optimizer has a different
    state."""
    taken: dict[str, Array] = {}
    for name in (layer.removeprefix(MODEL) for layer in layers):
        there, here = (
            {full: a for full, a in of.items() if full.startswith(OPTIMIZER) and full.split("/", 2)[2] == name}
            for of in (found, arrays)
        )
        # Adam has no state before its first step.
        expected = {f"{OPTIMIZER}{key}/{name}" for key in ADAM_STATE} if is_adam else here.keys()
        if there.keys() == expected:
            taken |= there
    return taken


def _sentences(
    arrays: Mapping[str, Array], own: Sequence[str], found: Mapping[str, Array], layers: Mapping[str, Array]
) -> list[str]:
    """Describe which layers were taken, and why others were not."""
    there = [name for name in found if name.startswith(MODEL)]
    other = {
        "of another shape": [
            f"{name} ({list(found[name].shape)} there, {list(arrays[name].shape)} here)"
            for name in own if name in found and name not in layers
        ],
        "only here, so new": [name for name in own if name not in found],
        "only there": [name for name in there if name not in own],
    }  # fmt: skip
    begins = f"init_from: took {len(layers):,} of {len(own):,} layers"
    if not layers and own:
        begins = f"warning: init_from: took none of {len(own):,} layers, so the dense part is new"
    return [begins] + [
        f"init_from: layers {what}: {', '.join(name.removeprefix(MODEL) for name in names[:NAMED])}"
        f"{f' and {len(names) - NAMED} more' if len(names) > NAMED else ''}"
        for what, names in other.items() if names
    ]  # fmt: skip
