"""Checking of every bit of a servable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.serving.pages import check_part, part_file
from pipeline.serving.servable import FENCES_FILE, ROWS_FOLDER, OpenedServable, open_files
from pipeline.storage.files import checksum_of


def check_servable(folder: Path) -> Iterator[str]:
    """Yield a line for each thing that is wrong with a servable: each file against its checksum, then each page. Raises
    ValueError if the folder holds none, and Damaged if the small files, which say what the others are, are damaged."""
    opened = open_files(folder)
    manifest = opened.manifest
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
