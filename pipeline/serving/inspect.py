"""Checking of every bit of a servable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.serving.open_servable import OpenServable
from pipeline.serving.pages import check_part, part_file
from pipeline.serving.servable import FENCES_FILE, ROWS_FOLDER, OpenedServable, ServableRows, open_files
from pipeline.serving.workflows import checked_workflow, has_own_model
from pipeline.storage.files import checksum_of

PAGES_TO_OPEN = 64
"""Pages that the memory for an opening has room for, which is more than the smallest cache takes."""


def check_servable(folder: Path) -> Iterator[str]:
    """Yield a line for each thing that is wrong with a servable: each file against its checksum, then each page; then,
    if these are as written, what opening it finds. Raises ValueError if the folder holds none, and Damaged if the small
    files, which say what the others are, are damaged."""
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
            yield f"{path}: is missing"
        elif checksum_of(path) != digest:
            yield f"{path}: its checksum is not that of the manifest"
    yield from _check_parts(opened)
    known = {*manifest.files, ROWS_FOLDER, "manifest.json"}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield f"{path}: the manifest does not name it"


def _check_opening(opened: OpenedServable) -> Iterator[str]:
    """Open the servable as a server does; a model class of the user's, which is not at hand, is left out."""
    memory_bytes = PAGES_TO_OPEN * opened.manifest.page_bytes + (1 << 20)
    workflow = checked_workflow(opened.manifest.workflow, None, needs_class=False)
    try:
        if has_own_model(opened.manifest.workflow):
            OpenServable(opened, memory_bytes, backend="torch").close()
        else:
            ServableRows(opened, workflow, memory_bytes).close()
    except (ValueError, OSError) as error:
        yield str(error)


def _check_parts(opened: OpenedServable) -> Iterator[str]:
    rows, page_bytes, first, num_rows = opened.folder / ROWS_FOLDER, opened.manifest.page_bytes, 0, 0
    for number, digest in enumerate(opened.manifest.parts):
        path = part_file(rows, number)
        if not path.is_file():
            yield f"{path}: is missing"
            return
        if checksum_of(path) != digest:
            yield f"{path}: its checksum is not that of the manifest"
        end = first + path.stat().st_size // page_bytes
        following = int(opened.fences_N[end]) if end < len(opened.fences_N) else 1 << 32
        yield from check_part(rows, number, opened.page_format, opened.fences_N[first:end], following)
        words_M = np.memmap(path, np.uint32, "r")[1 :: page_bytes // 4] if end > first else np.zeros(0, np.uint32)
        num_rows += int(words_M.sum(dtype=np.int64))
        first = end
    if first != len(opened.fences_N):
        yield f"{opened.folder / FENCES_FILE}: has {len(opened.fences_N):,} fences, and there are {first:,} pages"
    if num_rows != opened.manifest.num_rows:
        yield f"{rows}: holds {num_rows:,} rows, expected {opened.manifest.num_rows:,}"
