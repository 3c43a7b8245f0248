"""Record of the scoring in an output folder, so that only the same command resumes it. It is stored in the metadata of
each scored file, so the folder contains only scores and any reader can take it as a dataset."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.outside import BadValues
from pipeline.machine.aside import WAYS_OUT
from pipeline.own_code.code import is_other_code
from pipeline.settings import Count, Digest, Strict, read_json
from pipeline.storage.files import Files

RECORD = "pipeline.scoring"
UNFINISHED = "_scoring"
"""Folder for unfinished files, in the output folder; deleted at the end."""


class ScoringRecord(Strict):
    """Everything that determines the bytes of the scored files."""

    commit: Count
    manifest: Digest
    """Checksum of the commit's manifest, which contains the checksums of all its files."""
    features: Digest
    keep: tuple[str, ...]
    workers: Count
    bad_values: BadValues
    data: Digest
    code: str
    """Digest of the files of the model class."""


def refuse_another(out: Path, known: dict[str, Any]) -> None:
    """Raises ValueError if a folder contains another scoring or other files. `known`: the known fields of the new
    scoring's record."""
    names = (path.relative_to(out) for path in out.rglob("*") if path.is_file())
    if not (there := next((name for name in names if name.parts[0] != UNFINISHED), None)):
        return
    try:
        before = read_json(ScoringRecord, (pq.read_schema(out / there).metadata or {})[RECORD.encode()])
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ValueError(f"{out} has other files than a scoring of this version: {there}; {WAYS_OUT}") from error
    differences = []
    for name, value in known.items():
        was = getattr(before, name)
        if is_other_code(was, value) if name == "code" else was != value:
            differences.append(f"{name} was {was}, is {value}")
    if differences:
        raise ValueError(f"{out} holds another scoring: {'; '.join(differences)}; {WAYS_OUT}")


def claim_output(out: Path, record: ScoringRecord) -> None:
    """Claim the output folder, and delete the unfinished files of a killed scoring. Raises ValueError if the folder
    contains another scoring or other files."""
    refuse_another(out, dict(record))
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)
    Files().make_folder(out / UNFINISHED)
