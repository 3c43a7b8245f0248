"""Export of a commit as a servable, in bounded memory. A killed export can be resumed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.data.side_files import FOLDER, copy_name
from pipeline.features.times import TimeInput
from pipeline.files.description import inner_of_name
from pipeline.machine.aside import WAYS_OUT
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.dense_files import dense_files
from pipeline.serving.http.request import output_of, read_request
from pipeline.serving.open_servable import OpenServable
from pipeline.serving.pages import PageFormat, write_part
from pipeline.serving.servable import (
    CURRENT_FILE,
    FEATURES_FILE,
    FENCES_FILE,
    RATES_FILE,
    REQUEST_FILE,
    RESPONSE_FILE,
    ROWS_FOLDER,
    SERVABLE_MANIFEST,
    OpenedServable,
    Precision,
    ServableManifest,
    ServableRows,
    read_servable,
)
from pipeline.serving.served_model import InputSpec, inputs_of
from pipeline.serving.sorted_runs import sorted_parts
from pipeline.settings import Strict
from pipeline.storage.durable import read_sealed, write_sealed
from pipeline.storage.files import Files, checksum, tensors
from pipeline.training.dense_state import merge_dense

EXPORTING = "_exporting"
"""Folder with the sorted runs and the record of an unfinished export; deleted at its end."""

EXAMPLE_ROWS = 2
MADE_UP: dict[str, list[Any]] = {
    "FP32": [0.5, 1.5], "FP64": [0.5, 1.5], "INT64": [1, 2], "UINT64": [1, 2], "BYTES": ["a", "b"],
    "BOOL": [False, True],
}  # fmt: skip
"""Values by datatype, used if the run's data can no longer be read."""
EXAMPLE_MEMORY = 64 << 20


class ExportSettings(Strict):
    precision: Precision = "float32"
    negatives: float = 1.0
    """Share of the negative examples kept when the training data were down-sampled."""
    memory: int = 1 << 30


class ExportRecord(ExportSettings):
    """Record of an unfinished export: everything that determines the bytes of its files."""

    source: str
    """Checksum of the commit's manifest."""


def export(
    opened: OpenedCommit, out: Path, settings: ExportSettings, say: Callable[[str], None] = print
) -> ServableManifest:
    """Write the servable of a commit to the folder `out`. The manifest, written last, makes it complete. Does nothing
    if the servable already exists.

    Raises ValueError if the folder contains other files or the precision cannot represent a weight, and Damaged if the
    commit is damaged.
    """
    files, record = Files(), ExportRecord(source=checksum(opened.manifest.content()), **dict(settings))
    if (out / SERVABLE_MANIFEST).exists():
        made = read_servable(out)
        if (made.source, made.precision, made.negatives) != (record.source, record.precision, record.negatives):
            raise ValueError(f"{out} holds another servable, of commit {made.commit}; {WAYS_OUT}")
        remove_unfinished(out)
        return made
    claim_folder(out, record, files)
    files.make_folder(out / ROWS_FOLDER)
    saved = merge_dense(opened.held.load_replicas())
    page_format = PageFormat(opened.layout.embedding_dim, opened.layout.first_order, settings.precision)
    parts, fences = [], [np.empty(0, np.uint32)]
    for part in sorted_parts(opened, out / EXPORTING, saved, settings.memory, page_format.row_bytes, say):
        digest, fences_M = write_part(files, out / ROWS_FOLDER, part.number, page_format, part.keys_N, part.weights_NC)
        parts.append(digest)
        fences.append(fences_M)
    fences_N = np.concatenate(fences)
    request = example_request(opened)
    # Sorted, since the library that reads them has no fixed order, and the bytes of the file must be deterministic.
    rates = {name: saved[name] for name in sorted(saved) if name.startswith("rates/")}
    small: dict[str, list[Any]] = {
        FEATURES_FILE: [opened.features.content(indent=1) + b"\n"],
        FENCES_FILE: [fences_N],
        REQUEST_FILE: [request],
        RATES_FILE: tensors(rates),
    }
    for name in map(copy_name, opened.state.side_files.values()):
        small[name] = [(opened.held.run_dir / FOLDER / name).read_bytes()]
    sums = {name: files.replace(out / name, content) for name, content in small.items()}
    manifest = ServableManifest(
        name=opened.workflow.name,
        commit=opened.held.number,
        source=record.source,
        step=opened.step,
        precision=settings.precision,
        page_bytes=page_format.page_bytes,
        num_rows=opened.manifest.live_rows,
        parts=tuple(parts),
        row=opened.manifest.row,
        workflow=opened.state.workflow,
        negatives=settings.negatives,
        files=sums,
        left_out={},
        measured={},
        unsigned=unsigned_of(opened),
        columns=opened.state.data["train"].described,
    )
    opened_files = OpenedServable(out, manifest, opened.features, fences_N, rates)
    with closing(ServableRows(opened_files, opened.workflow, EXAMPLE_MEMORY)) as rows:
        dense, left_out = dense_files(opened, saved, out, files, rows)
    for name, why in left_out.items():
        say(f"{name} is left out: {why}")
    manifest = manifest.model_copy(update={"files": sums | dense, "left_out": left_out})
    with OpenServable(replace(opened_files, manifest=manifest), EXAMPLE_MEMORY, opened.workflow, "torch") as servable:
        response = files.replace(out / RESPONSE_FILE, [example_response(servable, request)])
    manifest = manifest.model_copy(update={"files": manifest.files | {RESPONSE_FILE: response}})
    files.replace(out / SERVABLE_MANIFEST, [manifest.content])
    remove_unfinished(out)
    return manifest


def claim_folder(out: Path, record: ExportRecord, files: Files) -> None:
    """Claim the output folder, which must be empty or contain an unfinished export with the same record. Raises
    ValueError if it contains other files."""
    if (path := record_file(out)).exists():
        if read_sealed(path, ExportRecord) != record:
            raise ValueError(f"{out} holds an unfinished export with other arguments; {WAYS_OUT}")
        return
    # A killed export may have created only the folder of its record.
    if out.exists() and any(child.name != EXPORTING for child in out.iterdir()):
        raise ValueError(f"{out} has other files than those of an export; {WAYS_OUT}")
    files.make_folder(out.absolute())
    files.make_folder(path.parent)
    write_sealed(path, record)


def record_file(out: Path) -> Path:
    """File that exists in an output folder while its export is unfinished."""
    return out / EXPORTING / "record"


def remove_unfinished(out: Path) -> None:
    """Delete the files that only an unfinished export needs, the record first."""
    record_file(out).unlink(missing_ok=True)
    shutil.rmtree(out / EXPORTING, ignore_errors=True)


def publish(folder: Path, name: str) -> None:
    """Name a servable in the file `current` of its parent folder; servers of that folder switch to it."""
    Files().replace(folder / CURRENT_FILE, [f"{name}\n".encode()])


def unsigned_of(opened: OpenedCommit) -> tuple[str, ...]:
    """Categorical columns and item lists of unsigned 64-bit integers in the training data."""
    types = opened.state.data["train"].described
    names = [name for name in opened.features.kinds if name not in opened.features.made]
    return tuple(name for name in names if inner_of_name(types[name]).startswith("uint64"))


def example_request(opened: OpenedCommit) -> bytes:
    """Body of a request with two rows, one tensor per line: the first two rows of the test split, or else of validation
    or training; made-up values if none can be read."""
    inputs = inputs_of(opened.features, unsigned_of(opened))
    try:
        rows = opened.first_rows(EXAMPLE_ROWS)
        tensors = [one for spec in inputs for one in _tensors(spec, _values(rows.column(spec.name), spec.time))]
    except (ValueError, OSError, pa.ArrowException):
        tensors = [one for spec in inputs for one in _tensors(spec, made_up(spec))]
    return ('{"inputs": [\n  ' + ",\n  ".join(map(json.dumps, tensors)) + "\n]}\n").encode()


def made_up(spec: InputSpec) -> list[Any]:
    values = [None, None] if spec.time else MADE_UP[spec.datatype]
    return [[value] for value in values] if spec.is_list else values


def _values(column: pa.ChunkedArray, time: TimeInput | None) -> list[Any]:
    """Values of a column; times are integers since 1970, in the announced unit."""
    return list((time.counts(column) if time else column).to_pylist())


def _tensors(spec: InputSpec, values: list[Any]) -> list[dict[str, Any]]:
    """Request tensors of an input with these values. Raises ValueError if a text is not UTF-8."""
    if not spec.is_list:
        return [_tensor(spec.name, spec.datatype, values)]
    lengths = [None if row is None else len(row) for row in values]
    flat = [value for row in values for value in row or ()]
    return [_tensor(spec.name, spec.datatype, flat), _tensor(f"{spec.name}.lengths", "INT64", lengths)]


def _tensor(name: str, datatype: str, values: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": [_plain(datatype, v) for v in values]}


def _plain(datatype: str, value: Any) -> Any:
    is_float = datatype in ("FP32", "FP64")
    if value is None or (is_float and not math.isfinite(value)):
        return None
    if datatype == "BYTES":
        return value.decode() if isinstance(value, bytes) else value
    if datatype == "BOOL":
        return bool(value)
    return float(value) if is_float else int(value)


def example_response(opened: OpenServable, request: bytes) -> bytes:
    """Expected answer of a server to the example, without the servable's version."""
    inputs = inputs_of(opened.features, opened.manifest.unsigned)
    table = opened.predict(read_request(request, None, inputs, ()).table)
    outputs = [output_of(name, table.column(name).to_numpy(), False) for name in table.column_names]
    head = f'{{"model_name": {json.dumps(opened.manifest.name)}, "outputs": [\n  '
    return (head + ",\n  ".join(map(json.dumps, outputs)) + "\n]}\n").encode()
