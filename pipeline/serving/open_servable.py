"""A servable opened in Python: scores and rows with a page cache of limited size, without a key map; and the check of
every bit of a servable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pipeline.data.decode import keys_of
from pipeline.data.files import columns_of, plain
from pipeline.data.outside import BadValues, check_rule
from pipeline.data.side_files import with_copies
from pipeline.files.types import in_memory_type, key_kind, to_plain
from pipeline.machine.limits import cpus
from pipeline.messages.sizes import bytes_of_memory
from pipeline.records import F32, U64
from pipeline.serving.features import Features, checked_workflow, has_own_model
from pipeline.serving.onnx_model import OnnxDense
from pipeline.serving.page_table import PartFiles, Scratch
from pipeline.serving.pages import misplaced, part_file
from pipeline.serving.predictor import DensePart, Predictor, array_of
from pipeline.serving.servable import (
    AGAIN,
    ONNX_FILE,
    ROWS_FOLDER,
    SERVABLE_MANIFEST,
    WEIGHTS_FILE,
    OpenedServable,
    ServableManifest,
    ServableRows,
    open_files,
    read_checked,
    read_tensors,
)
from pipeline.storage.files import Damaged, checksum_of
from pipeline.workflow import Data, Workflow
from pipeline.workflow import load as load_file

Backend = Literal["torch", "onnx"]
CACHE_MEMORY = "512 MiB"


def open_servable(
    folder: str | Path, memory: str | int = CACHE_MEMORY, workflow: str | Path | None = None,
    backend: Backend | None = None, bad_values: BadValues = "clip",
) -> OpenServable:  # fmt: skip
    """Open a servable for scores and rows. `memory`: size of the page cache. `workflow`: the workflow's file, which the
    torch backend needs if it defines the model class. `backend`: library that runs the dense part (default: ONNX
    Runtime if it is installed and the servable has an ONNX file, else torch). `bad_values`: see `open_run`.

    Raises ValueError if the folder contains no servable or an argument does not match it, and Damaged if it is damaged.
    """
    num_bytes = bytes_of_memory(memory)
    given = load_file(Path(workflow)) if workflow else None
    check_rule(bad_values)
    return OpenServable(open_files(Path(folder)), num_bytes, given, backend, bad_values)


class OpenServable:
    """An open servable. Thread-safe. Also a context manager that closes it."""

    def __init__(
        self, opened: OpenedServable, memory_bytes: int, given: Workflow | None = None, backend: Backend | None = None,
        bad_values: BadValues = "clip",
    ) -> None:  # fmt: skip
        self._opened = opened
        has_onnx = ONNX_FILE in opened.manifest.files
        self.backend: Backend = backend or ("onnx" if has_onnx and find_spec("onnxruntime") else "torch")
        """Library that runs the dense part."""
        needs_class = self.backend == "torch"
        workflow = checked_workflow(opened.manifest.workflow, given, needs_class)
        # The dense part of a servable uses float32, whatever the precision of the run.
        model = workflow.model.model_copy(update={"precision": "float32"})
        data = with_copies(workflow.data, opened.features.side_files, opened.folder)
        self._workflow = workflow.model_copy(update={"model": model, "data": data})
        shift_T = np.log(opened.manifest.negatives) * np.array([task.is_binary for task in workflow.data.all_tasks])
        dense = self._torch(given is None) if needs_class else self._onnx()
        make = (lambda: shifted(dense(), shift_T.astype(np.float32))) if shift_T.any() else dense
        self.reader = ServableRows(opened, self._workflow, memory_bytes)
        """Reader of the rows, with its page cache."""
        self.predictor = Predictor(
            self._workflow, opened.features, opened.layout, lambda: self.reader, make, bad_values
        )

    @property
    def manifest(self) -> ServableManifest:
        return self._opened.manifest

    @property
    def features(self) -> Features:
        return self._opened.features

    def _torch(self, args_are_kept: bool) -> Any:
        """Factory of forward passes in torch. `args_are_kept`: the model's arguments come from the manifest, which may
        say anything, and not from the user's file."""
        # Imported only when used: it takes a second and 100 MB.
        from pipeline.serving.torch_model import TorchDense, check_sizes, model_with

        values = read_tensors(self._opened.folder, self.manifest, WEIGHTS_FILE)
        try:
            if args_are_kept:
                check_sizes(self._workflow, values)
            model = model_with(self._workflow, values)
        except ValueError as error:
            folder = self._opened.folder
            raise Damaged(
                f"{folder / SERVABLE_MANIFEST}: workflow: its model is not that of {WEIGHTS_FILE}: {error}; {AGAIN}"
            ) from error
        return lambda: TorchDense(self._workflow, model)

    def _onnx(self) -> Any:
        if ONNX_FILE not in self.manifest.files:
            why = self.manifest.left_out.get(ONNX_FILE, "it was not made")
            raise ValueError(f"{self._opened.folder} has no {ONNX_FILE} ({why}); use the backend torch")
        # The run may have had more processors than this machine.
        threads = min(self._workflow.schedule.threads, cpus())
        dense: DensePart = OnnxDense(
            read_checked(self._opened.folder, self.manifest, ONNX_FILE), threads, self._workflow.data.sequences
        )
        return lambda: dense

    def predict(self, data: object) -> pa.Table:
        """Score `data`; see `OpenRun.predict`."""
        return self.predictor.predict(data)

    def rows(self, column: str, values: Any) -> pa.Table:
        """Look up the rows of values, or of one value, of a categorical column. Returns a row for each: `value`, `key`,
        `known` (false: it has no row, and the weights are those of its first row) and `weights` as in
        `OpenRun.rows`."""
        array, keys_N = keys_of_values(self.features, self._workflow.data, column, values)
        unique_U, inverse_N = np.unique(keys_N, return_inverse=True)
        weights_UC: F32 = np.empty((len(unique_U), self._opened.layout.num_weights), np.float32)
        known_U = self.reader.weights(unique_U, weights_UC)
        return pa.table({
            "value": array, "key": keys_N, "known": known_U[inverse_N], "weights": vectors(weights_UC[inverse_N]),
        })  # fmt: skip

    def close(self) -> None:
        """Release files and memory."""
        self.reader.close()

    def __enter__(self) -> OpenServable:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def shifted(dense: DensePart, shift_T: F32) -> DensePart:
    """Forward pass with logits shifted to undo the down-sampling of negative examples. `shift_T`: for each label, the
    logarithm of the share that was kept; 0 for a numeric label."""
    return lambda *inputs: dense(*inputs) + shift_T


def vectors(values_NC: np.ndarray) -> pa.Array:
    """Arrow array of fixed-size lists, one for each row of a matrix."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values_NC).reshape(-1)), values_NC.shape[1])


def keys_of_values(features: Features, data: Data, column: str, values: Any) -> tuple[pa.Array, U64]:
    """Arrow array and keys of values, or of one value, of a categorical column; None is a missing value. `data`: data
    section of the workflow, with the files of its features. Raises ValueError if there is no such column or if the kind
    of the values differs from the training data."""
    categories = {one.name: one for one in columns_of(data, description=features.description) if one.has_rows}
    if column not in categories:
        raise ValueError(f"{column!r} is not a categorical column; expected one of {', '.join(categories)}")
    expected = features.kinds[column].removeprefix("lists of ")
    spec = categories[column]
    given = array_of_values(column, values)
    array = given if isinstance(given, pa.ChunkedArray) else pa.chunked_array([given])
    array = to_plain(array, in_memory_type(array, features.canonical), f"values of {column!r}", features.canonical)
    array = plain(array, spec, expected, "values")
    kind = key_kind(array.type)
    if kind != expected:
        raise ValueError(f"values of {column!r} are {kind or array.type}, expected {expected} as in the training data")
    one = array.combine_chunks()
    return one, keys_of(one, spec)


def array_of_values(column: str, values: Any) -> pa.Array | pa.ChunkedArray:
    """Arrow array of values, or of one value: a text is one value, not a sequence of characters."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, pa.Scalar):
        return pa.repeat(values, 1)
    elif isinstance(values, np.ndarray) and not values.ndim:
        values = values.item()
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        values = [values]
    elif not hasattr(values, "__len__"):
        values = list(values)
    return array_of(f"values of {column!r} are neither integers of 64 bits nor texts", values)


PAGES_AT_ONCE = 64
"""Number of pages per read; if several of them are damaged, only the first is named."""
PAGES_TO_OPEN = 64
"""Memory for the trial opening, in pages; more than the smallest cache needs."""


def check_servable(folder: Path) -> Iterator[str]:
    """Yield a line for each fault of a servable. Checks each file against its checksum, then each page and, if all are
    intact, opens the servable. Raises ValueError if the folder contains no servable, and Damaged if the small files,
    which describe the others, are damaged."""
    opened, whole = open_files(folder), True
    for fault in _check_content(opened):
        whole = False
        yield fault
    if whole:
        yield from _check_opening(opened)


def _check_content(opened: OpenedServable) -> Iterator[str]:
    folder, manifest = opened.folder, opened.manifest
    for name, digest in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield f"{path} is missing"
        elif checksum_of(path) != digest:
            yield f"{path}: its checksum is not that of the manifest"
    yield from _check_rows(opened)
    known = {*manifest.files, ROWS_FOLDER, "manifest.json"}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield f"{path}: the manifest does not name it"


def _check_opening(opened: OpenedServable) -> Iterator[str]:
    """Open the servable as a server does. A user's model class is not available and therefore not checked."""
    memory_bytes = PAGES_TO_OPEN * opened.manifest.page_bytes + (1 << 20)
    workflow = checked_workflow(opened.manifest.workflow, None, needs_class=False)
    try:
        if has_own_model(opened.manifest.workflow):
            OpenServable(opened, memory_bytes, backend="torch").close()
        else:
            ServableRows(opened, workflow, memory_bytes).close()
    except (ValueError, OSError) as error:
        yield str(error)


def _check_rows(opened: OpenedServable) -> Iterator[str]:
    folder, manifest, num_pages, num_rows = opened.folder / ROWS_FOLDER, opened.manifest, len(opened.fences_N), 0
    fences_N = opened.fences_N
    ends_N = np.append(fences_N[1:], [1 << 32]).astype(np.uint64)
    for number, digest in enumerate(manifest.parts):
        if not (path := part_file(folder, number)).is_file():
            yield f"{path} is missing"
        elif checksum_of(path) != digest:
            yield f"{path}: its checksum is not that of the manifest"
    try:
        files = PartFiles(folder, len(manifest.parts), opened.fences_N, opened.page_format)
    except OSError as error:
        yield str(error)
        return
    with closing(files), closing(Scratch(PAGES_AT_ONCE, manifest.page_bytes)) as scratch:
        for begin in range(0, num_pages, PAGES_AT_ONCE):
            pages_R = np.arange(begin, min(begin + PAGES_AT_ONCE, num_pages), dtype=np.int32)
            try:
                pages_RB = files.read(pages_R, scratch)
            except OSError as error:
                yield str(error)
                continue
            num_rows += int(pages_RB.view(np.uint32)[:, 1].sum(dtype=np.int64))
            here = slice(begin, begin + len(pages_R))
            for number, what in misplaced(pages_RB, fences_N[here], ends_N[here], opened.page_format):
                yield f"{folder}: page {begin + number} is damaged: {what}; export the table again"
    if num_rows != manifest.num_rows:
        yield f"{folder}: {num_rows:,} rows are in undamaged pages, expected {manifest.num_rows:,}"
