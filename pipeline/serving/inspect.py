"""Check of every bit of a servable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from pipeline.serving.open_servable import OpenServable
from pipeline.serving.page_table import PartFiles, Scratch
from pipeline.serving.pages import misplaced, part_file
from pipeline.serving.servable import ROWS_FOLDER, OpenedServable, ServableRows, open_files
from pipeline.serving.workflows import checked_workflow, has_own_model
from pipeline.storage.files import checksum_of

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
