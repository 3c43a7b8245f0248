"""Record of the scoring that an output folder holds, so that the same command goes on with it and no other one does."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.data.identity import SplitIdentity, difference
from pipeline.data.outside import BadValues
from pipeline.machine.aside import WAYS_OUT
from pipeline.own_code.code import is_other_code
from pipeline.settings import Count, Digest, Strict
from pipeline.storage.durable import read_sealed, write_sealed
from pipeline.storage.files import Files

RECORD = "scoring.json"


class ScoringRecord(Strict):
    """Content of `scoring.json`: everything on which the bytes of the scored files depend."""

    commit: Count
    manifest: Digest
    """Checksum of the commit's manifest, which has those of all its files."""
    features: Digest
    keep: tuple[str, ...]
    workers: Count
    bad_values: BadValues = "clip"
    data: SplitIdentity
    code: str = ""
    """Digest of what the model class runs; empty in records of earlier versions of this package."""


def refuse_another(out: Path, known: dict[str, Any]) -> ScoringRecord | None:
    """Record of the scoring that a folder holds, or None. `known`: fields of the record of the scoring to do, those
    that are known. Raises ValueError if they differ, or if the folder holds anything else."""
    path = out / RECORD
    if not path.exists():
        if out.exists() and any(not child.name.endswith(".partial") for child in out.iterdir()):
            raise ValueError(f"{out} holds something else than a scoring; {WAYS_OUT}")
        return None
    try:
        before = read_sealed(path, ScoringRecord)
    except ValueError as error:
        raise ValueError(f"{error}; {WAYS_OUT}") from error
    said = []
    for name, value in known.items():
        was = getattr(before, name)
        if is_other_code(was, value) if name == "code" else was != value:
            data = name == "data" and (difference(was, value) or "data")
            said.append(data or f"{name} was {was}, is {value}")
    if said:
        raise ValueError(f"{out} holds another scoring: {'; '.join(said)}; {WAYS_OUT}")
    return before


def claim_output(out: Path, record: ScoringRecord, outputs: Collection[Path]) -> None:
    """Claim the output folder, and delete the partial files of a killed scoring, but for its `outputs`. Raises
    ValueError if it holds another scoring, or anything else."""
    Files().make_folder(out)
    if refuse_another(out, {name: getattr(record, name) for name in ScoringRecord.model_fields}):
        for partial in set(out.rglob("*.partial")) - set(outputs):
            partial.unlink()
    else:
        write_sealed(out / RECORD, record)
