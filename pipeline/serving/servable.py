"""A servable: a folder with everything needed for scoring, made from a commit by `export`; immutable.

manifest.json            names every other file with its checksum; written last
features.json            columns, tables, transforms, hash, seed
request.json             an example of a request to a server, for two rows of the run's data
response.json            what it should answer, to rounding
rows/0000 ...            the rows' weights, sorted by key, in pages (`pages.py`)
fences                   top 32 bits of each page's first key
rates.safetensors        history of learning rates, with which first rows are caught up
model.safetensors        parameters and buffers of the dense part
model.onnx               the dense part for ONNX Runtime and other programs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.commits.manifest import arrays_of, other_format
from pipeline.records import F32, U32, U64, Array
from pipeline.serving.caught_up import CaughtUp, Known
from pipeline.serving.features import Features, checked_workflow, with_keys
from pipeline.serving.page_table import PageTable
from pipeline.serving.pages import PageFormat
from pipeline.settings import Amount, Count, Digest, Names, PlainName, Share, Strict, read_json
from pipeline.storage.durable import Seal
from pipeline.storage.files import Damaged, checksum
from pipeline.storage.layout import RowLayout, formats_of_rows
from pipeline.workflow import Workflow

SERVABLE_MANIFEST = "manifest.json"
FEATURES_FILE, ROWS_FOLDER, FENCES_FILE, RATES_FILE = "features.json", "rows", "fences", "rates.safetensors"
WEIGHTS_FILE, ONNX_FILE = "model.safetensors", "model.onnx"
REQUEST_FILE, RESPONSE_FILE = "request.json", "response.json"
"""Names of a servable's files; the parts of the table are in the folder ROWS_FOLDER."""
CURRENT_FILE = "current"
"""File in a folder of servables with one line, the name of the servable to serve. It is replaced by a rename."""
SERVABLE_FORMAT: Literal[1] = 1
SEAL = Seal(b'{"checksum": "%s"}\n', b"\n")
AGAIN = "export the servable again"

Precision = Literal["float32", "float16", "int8"]


class ServableManifest(Strict):
    """Content of `manifest.json`."""

    format: Literal[1] = SERVABLE_FORMAT
    name: str
    """Name of the run's workflow."""
    commit: Count
    source: Digest
    """Checksum of the commit's manifest."""
    step: Count
    """Number of steps up to which rows are caught up."""
    precision: Precision
    page_bytes: Count
    num_rows: Count
    parts: tuple[Digest, ...]
    row: dict[str, Any]
    """Layout of a row in the commit; its optimizer determines how first rows are caught up."""
    workflow: dict[str, Any]
    negatives: Share
    """Share of the negative examples kept when the training data were down-sampled; 1: all of them."""
    files: dict[PlainName, Digest]
    """Checksum of every file except the parts and this file."""
    left_out: dict[str, str]
    """Files that could not be made, with the first line of the reason."""
    measured: dict[str, Amount]
    """Always empty; a field of format 1."""
    unsigned: tuple[str, ...] = ()
    """Categorical columns of unsigned 64-bit integers in the training data. Omitted from the file if empty."""
    columns: Names
    """Name of the Arrow type of each column of the training data. Omitted from the file if empty."""

    @property
    def content(self) -> bytes:
        """Content of the file: a line with a checksum, and a line with the values."""
        left_out = {name for name in ("unsigned", "columns") if not getattr(self, name)}
        text = self.model_dump_json(exclude=left_out).encode()
        return SEAL.close(text)

    @property
    def digest(self) -> str:
        """Checksum of the file, used as a short name of the servable."""
        return checksum(self.content)


def read_servable(folder: Path) -> ServableManifest:
    """Read a servable's manifest. Raises ValueError if the folder contains no servable, and Damaged if the manifest is
    damaged."""
    path = folder / SERVABLE_MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no servable: it has no {SERVABLE_MANIFEST}; name a folder that `pipeline export` made"
        )
    try:
        manifest = read_json(ServableManifest, SEAL.open(path.read_bytes()))
        RowLayout.of(manifest.row)
    except ValueError as error:
        raise Damaged(f"{path}: {other_format(path, SEAL, SERVABLE_FORMAT) or error}; {AGAIN}") from error
    return manifest


@dataclass(frozen=True, slots=True)
class OpenedServable:
    """Content of a servable's small files, checked."""

    folder: Path
    manifest: ServableManifest
    features: Features
    fences_N: U32
    rates: dict[str, Array]

    @property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.manifest.row)

    @property
    def page_format(self) -> PageFormat:
        layout = self.layout
        return PageFormat(layout.embedding_dim, layout.first_order, self.manifest.precision)


def read_checked(folder: Path, manifest: ServableManifest, name: str) -> bytes:
    """Content of one of the servable's files. Raises Damaged if the file is damaged."""
    path = folder / name
    if name not in manifest.files:
        raise Damaged(f"{folder / SERVABLE_MANIFEST}: files: it does not name {name}; {AGAIN}")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing; {AGAIN}") from error
    if checksum(content) != manifest.files[name]:
        raise Damaged(f"{path}: its checksum is not that of {SERVABLE_MANIFEST}; {AGAIN}")
    return content


def read_tensors(folder: Path, manifest: ServableManifest, name: str) -> dict[str, Array]:
    """Arrays in one of the servable's safetensors files. Raises Damaged if the file is damaged or not safetensors."""
    return arrays_of(read_checked(folder, manifest, name), folder / name, AGAIN)


def open_files(folder: Path) -> OpenedServable:
    """Read and check the small files of a servable, without the rows. Raises ValueError if the folder contains no
    servable, and Damaged if a file is damaged or the manifest does not match the other files."""
    manifest = read_servable(folder)
    try:
        features = read_json(Features, read_checked(folder, manifest, FEATURES_FILE))
    except ValueError as error:
        raise Damaged(f"{folder / FEATURES_FILE}: {error}; {AGAIN}") from error
    fences = read_checked(folder, manifest, FENCES_FILE)
    if len(fences) % 4:
        raise Damaged(f"{folder / FENCES_FILE}: {len(fences)} bytes are not a whole number of fences; {AGAIN}")
    rates = read_tensors(folder, manifest, RATES_FILE)
    opened = OpenedServable(folder, manifest, features, np.frombuffer(fences, np.uint32), rates)
    if fault := next(_misfits(opened), None):
        raise Damaged(f"{folder / SERVABLE_MANIFEST}: {fault}; {AGAIN}")
    return opened


def _misfits(opened: OpenedServable) -> Iterator[str]:
    """Yield each mismatch between the manifest and the other files, with the field's name. Checksums only show that the
    files are those that the manifest was written with; mismatched files would give wrong scores."""
    manifest, features, layout, pages = opened.manifest, opened.features, opened.layout, len(opened.fences_N)
    try:
        workflow = checked_workflow(manifest.workflow, None, needs_class=False)
    except ValueError as error:
        yield f"workflow: {error}"
        return
    expected = {
        "labels": workflow.data.labels, "numbers": workflow.data.numbers, "categories": workflow.data.categories,
        "seed": workflow.seed, "init_std": workflow.model.init_std, "embedding_dim": workflow.model.embedding_dim,
        "features": workflow.data.features, "sequences": workflow.data.sequences,
    }  # fmt: skip
    for name, value in expected.items():
        if getattr(features, name) != value:
            yield f"workflow: its {name} is not that of {FEATURES_FILE}"
    if features.kinds.keys() != {*with_keys(features.categories, features.sequences)}:
        yield f"workflow: its categories are not those in {FEATURES_FILE}"
    rows = workflow.optimizer.rows
    if layout != (fitting := RowLayout(features.embedding_dim, features.first_order, rows.kind, formats_of_rows(rows))):
        yield f"row: it is {layout}, and the features and the optimizer have {fitting}"
    page_format = opened.page_format
    if page_format.page_bytes != manifest.page_bytes:
        yield f"page_bytes: it is {manifest.page_bytes:,}, and such rows are in pages of {page_format.page_bytes:,}"
    most = pages * page_format.max_rows
    if not pages <= manifest.num_rows <= most:
        yield f"num_rows: it is {manifest.num_rows:,}, and {pages:,} pages have {pages:,} to {most:,} rows"


class ServableRows:
    """Rows of a servable: weights as an evaluation of the commit reads them, in the servable's precision."""

    def __init__(self, opened: OpenedServable, workflow: Workflow, memory_bytes: int) -> None:
        """`memory_bytes`: size of the page cache. Raises ValueError if it is too small, and Damaged if the parts do not
        match the fences."""
        manifest, folder = opened.manifest, opened.folder / ROWS_FOLDER
        # Made before the table: if it fails, no file stays open.
        self._caught_up = CaughtUp(workflow.optimizer, opened.layout, opened.features, opened.rates, manifest.step)
        self.table = PageTable(folder, len(manifest.parts), opened.fences_N, opened.page_format, memory_bytes)

    def weights(self, keys_U: U64, weights_UC: F32) -> Known:
        known_U: Known = self.table.look_up(keys_U, weights_UC)
        if not known_U.all():
            weights_UC[~known_U] = self._caught_up.catch_up(self._caught_up.first_rows(keys_U[~known_U]))
        return known_U

    def close(self) -> None:
        self.table.close()
