"""Export of a commit as a servable, in bounded memory; a killed export goes on where it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.records import U32
from pipeline.serving.caught_up import CaughtUp
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.dense_files import dense_files
from pipeline.serving.pages import PageFormat, part_file, read_fences, write_part
from pipeline.serving.servable import (
    CURRENT_FILE,
    FEATURES_FILE,
    FENCES_FILE,
    RATES_FILE,
    ROWS_FOLDER,
    SERVABLE_MANIFEST,
    Precision,
    ServableManifest,
    read_servable,
)
from pipeline.serving.sorted_runs import SortedRuns, chunk_groups, key_ranges, rows_of_chunks
from pipeline.settings import Strict
from pipeline.storage.durable import read_sealed, write_sealed
from pipeline.storage.files import Damaged, Files, checksum, checksum_of, tensors
from pipeline.training.dense_state import merge_dense

EXPORTING = "exporting"
"""Folder of sorted runs and of the record of an unfinished export; deleted at its end."""
PART_BYTES = 64 << 20
"""Size that the parts of the table are cut to, approximately."""
MEMORY_BYTES = 1 << 30
RUN_SHARE = 5
"""A run takes a fifth of the memory in the log's form: rows, weights, and both again while they are sorted."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    precision: Precision = "float32"
    negatives: float = 1.0
    """Share of the negative examples that training data were down-sampled to."""
    memory: int = MEMORY_BYTES


class ExportRecord(Strict):
    """Content of the record of an unfinished export, on which the bytes of its files depend."""

    source: str
    precision: str
    negatives: float
    memory: int


def export(
    opened: OpenedCommit, out: Path, settings: ExportSettings, say: Callable[[str], None] = print
) -> ServableManifest:
    """Write the servable of a commit to the folder `out`; the manifest, written last, makes it one. A servable that is
    there already, of the same commit and settings, stays.

    Raises ValueError if the folder holds something else or the precision cannot hold a weight, and Damaged if the
    commit is damaged.
    """
    files = Files()
    source = checksum(opened.manifest.content())
    record = ExportRecord(
        source=source, precision=settings.precision, negatives=settings.negatives, memory=settings.memory
    )
    if manifest := finished(out, record):
        return manifest
    claim_folder(out, record, files)
    saved = merge_dense(opened.held.load_replicas())
    # Sorted: the library that read them has no fixed order, and the bytes of the file must not depend on it.
    rates = {name: saved[name] for name in sorted(saved) if name.startswith("rates/")}
    caught_up = CaughtUp(opened.workflow.optimizer, opened.layout, opened.features, saved, opened.step)
    layout = opened.layout
    page_format = PageFormat(layout.embedding_dim, layout.first_order, settings.precision)
    runs = SortedRuns(out / EXPORTING, layout.num_weights)
    num_runs = sort_rows(opened, runs, caught_up, settings.memory // RUN_SHARE, files, say)
    parts, fences_N = write_parts(opened, out, runs, num_runs, page_format, files)
    small: dict[str, list[Any]] = {
        FEATURES_FILE: [opened.features.model_dump_json(indent=1).encode() + b"\n"],
        FENCES_FILE: [fences_N],
        RATES_FILE: tensors(rates),
    }
    sums = {name: files.replace(out / name, content) for name, content in small.items()}
    dense, left_out, measured = dense_files(opened, saved, out, files)
    for name, why in left_out.items():
        say(f"{name} is left out: {why}")
    manifest = ServableManifest(
        name=opened.workflow.name,
        commit=opened.held.number,
        source=source,
        step=opened.step,
        precision=settings.precision,
        page_bytes=page_format.page_bytes,
        num_rows=opened.manifest.live_rows,
        parts=tuple(parts),
        row=opened.manifest.row,
        workflow=opened.state.workflow,
        negatives=settings.negatives,
        files=sums | dense,
        left_out=left_out,
        measured=measured,
    )
    files.replace(out / SERVABLE_MANIFEST, [manifest.content])
    shutil.rmtree(out / EXPORTING)
    return manifest


def finished(out: Path, record: ExportRecord) -> ServableManifest | None:
    """Return the manifest of the servable that an export with this record has finished, None if there is none, and
    delete the sorted runs that a kill has left beside it. Raises ValueError if the servable is another one."""
    if not (out / SERVABLE_MANIFEST).is_file():
        return None
    manifest = read_servable(out)
    if (manifest.source, manifest.precision, manifest.negatives) != (record.source, record.precision, record.negatives):
        raise ValueError(
            f"{out} holds something else: a servable of another commit, precision or prior correction; name another "
            "folder with --out"
        )
    if (out / EXPORTING).is_dir():
        shutil.rmtree(out / EXPORTING)
    return manifest


def claim_folder(out: Path, record: ExportRecord, files: Files) -> None:
    """Claim the output folder: an empty one, or one with an unfinished export of the same record. Raises ValueError if
    it holds anything else."""
    path = out / EXPORTING / "record"
    if path.exists():
        if read_sealed(path, ExportRecord) != record:
            raise ValueError(f"{out} holds an unfinished export of another commit or precision; name another folder")
    elif any(not _precedes_record(child, out) for child in out.rglob("*")):
        raise ValueError(f"{out} holds something else than an unfinished export; name another folder with --out")
    for folder in (out.absolute(), out / ROWS_FOLDER, out / EXPORTING):
        files.make_folder(folder)
    if not path.exists():
        write_sealed(path, record)


def _precedes_record(path: Path, out: Path) -> bool:
    """True for what an export that was killed before it wrote its record leaves in `out`."""
    if path in (out / ROWS_FOLDER, out / EXPORTING):
        return path.is_dir()
    return path.parent == out / EXPORTING and path.match("record.*.partial")


def sort_rows(
    opened: OpenedCommit, runs: SortedRuns, caught_up: CaughtUp, run_bytes: int, files: Files,
    say: Callable[[str], None],
) -> int:  # fmt: skip
    """Write the sorted runs that are missing; returns their number."""
    table, path = opened.manifest.table, opened.held.run_dir / "table.zarr"
    groups = chunk_groups(opened.manifest, run_bytes)
    for number, chunks in enumerate(groups):
        if not runs.has(number):
            with opened.held.explaining():
                keys_N, weights_NC = rows_of_chunks(path, table, chunks, caught_up)
            runs.write(number, keys_N, weights_NC, files)
            say(f"sorted {number + 1} of {len(groups)}")
    return len(groups)


def write_parts(
    opened: OpenedCommit, out: Path, runs: SortedRuns, num_runs: int, page_format: PageFormat, files: Files
) -> tuple[list[str], U32]:
    """Write the parts that are missing; returns the checksum of each and all fences. Raises Damaged if the commit has
    another number of rows than its manifest says."""
    num_rows, expected = 0, opened.manifest.live_rows
    num_parts = 1
    while num_parts * PART_BYTES < expected * page_format.row_bytes:
        num_parts *= 2
    sums, fences = [], [np.empty(0, np.uint32)]
    for number, (begin, end) in enumerate(key_ranges(num_parts)):
        keys_N, weights_NC = runs.read(num_runs, begin, end)
        num_rows += len(keys_N)
        path = part_file(out / ROWS_FOLDER, number)
        if path.exists():
            sums.append(checksum_of(path))
            fences.append(read_fences(path, page_format))
        else:
            written = write_part(files, out / ROWS_FOLDER, number, page_format, keys_N, weights_NC)
            sums.append(written[0])
            fences.append(written[1])
    if num_rows != expected:
        raise Damaged(
            f"{opened.held.run_dir}: commit {opened.held.number} has {num_rows:,} rows, expected {expected:,}"
        )
    return sums, np.concatenate(fences)


def publish(folder: Path, name: str) -> None:
    """Name a servable in the file `current` of the folder that it is in: servers of that folder take it."""
    Files().replace(folder / CURRENT_FILE, [f"{name}\n".encode()])
