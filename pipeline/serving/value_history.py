"""Row of a categorical value in each kept commit of a run, found by scanning the keys of its shard."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.commits.manifest import Commits
from pipeline.commits.reopen import checksums
from pipeline.errors import shortened
from pipeline.records import U32, U64
from pipeline.serving.caught_up import CaughtUp
from pipeline.serving.commit import OpenedCommit, open_commit
from pipeline.serving.features import Features, with_keys
from pipeline.serving.open_servable import keys_of_values
from pipeline.storage.files import Files
from pipeline.storage.log import Log, rows_file
from pipeline.storage.reader import allow_many_files
from pipeline.storage.shards import shard_of
from pipeline.storage.tier import check_keys
from pipeline.training.dense_state import merge_dense

LastRows = dict[tuple[int, str], int]
"""Last row of the key in each chunk that was read, by the chunk's number and key checksum; -1: none."""


def value_history(run_dir: Path, text: str) -> dict[str, Any]:
    """Look up FIELD=VALUE in all kept commits of a run, oldest first. Returns the object that `why --json` prints.

    Raises ValueError if there is no such field or commit, or the value is not of the field's kind; Damaged if data that
    is read is damaged; GivenUp if training deletes a commit meanwhile.
    """
    with (opened := open_commit(run_dir, needs_class=False)).held:
        field, value = parse_value(text, opened.features)
        _, key_1 = keys_of_values(opened.features, opened.workflow.data, field, [value])
    allow_many_files()
    last_rows: LastRows = {}
    commits = []
    for number in Commits(run_dir, Files(), 1).numbers():
        with (opened := open_commit(run_dir, number, needs_class=False)).held as held, held.explaining():
            head = {"number": number, "name": held.manifest.name, "step": opened.step}
            commits.append(head | row_of_key(opened, key_1, last_rows))
    return {"field": field, "value": value, "key": f"{key_1.item():#018x}", "commits": commits}


def parse_value(text: str, features: Features) -> tuple[str, int | str | None]:
    """Field and value in a text FIELD=VALUE; `null` is a missing value. Raises ValueError if there is no such field."""
    names = with_keys(features.categories, features.sequences)
    # The name of a field may contain an equals sign.
    field = max((name for name in names if text.startswith(f"{name}=")), key=len, default="")
    if not field:
        raise ValueError(f"{shortened(text)}: expected FIELD=VALUE, where the field is one of {', '.join(names)}")
    given = text[len(field) + 1 :]
    if features.kinds[field].endswith("integers"):
        with suppress(ValueError):
            return field, int(given)
    return field, None if given == "null" else given


def row_of_key(opened: OpenedCommit, key_1: U64, last_rows: LastRows) -> dict[str, Any]:
    """Weights of a key as an evaluation of the commit reads them and, if it has a row, its counters and location."""
    saved = merge_dense(opened.held.load_replicas())
    caught_up = CaughtUp(opened.workflow.optimizer, opened.layout, opened.features, saved, opened.step)
    row_W, place = find_row(opened, key_1, last_rows)
    if row_W is not None:
        place |= dict(zip(("last_step", "count"), row_W[opened.layout.last_step_at :].tolist(), strict=False))
    weights_1C = caught_up.first_weights(key_1) if row_W is None else caught_up.catch_up(row_W[None])
    norm = float(np.linalg.norm(weights_1C.astype(np.float64)))
    return {"known": row_W is not None, **place, "norm": norm, "weights": weights_1C[0].tolist()}


def find_row(opened: OpenedCommit, key_1: U64, last_rows: LastRows) -> tuple[U32 | None, dict[str, Any]]:
    """Find the last version of a key's row in a commit: [W] words, with its file and its number in the file; None if
    the commit has no row for this key. Raises Damaged if data that was read is damaged."""
    held, table = opened.held, opened.manifest.table
    log = Log(held.run_dir / "table.zarr", table, opened.speed, Files(), checksums([held.manifest]))
    try:
        # Chunks of a shard are written in the order of their numbers.
        of_shard = [n for n in log.checksums if n % table.shards.num == shard_of(key_1, table.shards.num).item()]
        for chunk in sorted(of_shard, reverse=True):
            known = chunk, log.checksums[chunk][1]
            if known not in last_rows:
                last_rows[known] = max(np.flatnonzero(log.keys(chunk) == key_1).tolist(), default=-1)
            if (row := last_rows[known]) >= 0:
                at_1, row_1W = np.array([chunk * log.chunk_rows + row]), np.empty((1, log.layout.num_words), np.uint32)
                log.gather(at_1, row_1W)
                check_keys(log, at_1, row_1W, key_1)
                return row_1W[0], {"file": str(rows_file(log.path, chunk, table.shards.num)), "row": row}
        return None, {}
    finally:
        log.close()
        # If a chunk was deleted meanwhile, another with later rows may have replaced it.
        held.check()
