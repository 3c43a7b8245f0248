"""Explanation of one value of a categorical field: all that the commits of a run know of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import did_you_mean, shortened
from pipeline.monitor.runs import is_finished
from pipeline.records import F32, U64
from pipeline.serving.caught_up import CaughtUp
from pipeline.serving.commit import OpenedCommit, open_commit
from pipeline.serving.features import Features
from pipeline.serving.open_servable import keys_of_values
from pipeline.serving.row_history import CommittedRow, LoggedRow, RowFinder, row_history
from pipeline.storage.layout import STATE, RowLayout
from pipeline.storage.shards import shard_of
from pipeline.storage.wide_rows import widened
from pipeline.training.dense_state import merge_dense

LEAST, MOST = -(1 << 63), (1 << 64) - 1
"""Range of the integers that a column can have."""


def explain_value(run_dir: Path, text: str, commit: str | int | None = None) -> dict[str, Any]:
    """Look up FIELD=VALUE in a commit of a run and in all other kept ones: what `why --json` prints.

    Raises ValueError if the field or the commit does not exist, or the value is of another kind than the field's, and
    Damaged if what is read is damaged.
    """
    opened = open_commit(run_dir, commit, needs_class=False)
    with opened.held as held:
        features = opened.features
        field, value = parse_value(text, features)
        _, key_1 = keys_of_values(features, field, _typed(value))
        finder = RowFinder(key_1.item())
        logged = finder.find(held, opened.speed)
        # The commit stays held: the one that was asked for is among those of the history.
        history = row_history(run_dir, finder, opened.speed)
        weights_C = _weights(opened, logged, key_1)
    table = next(category.table_name for category in features.categories if category.name == field)
    sharing = [category.name for category in features.categories if category.table_name == table]
    found = {
        "run": str(run_dir),
        "field": field,
        "value": value,
        "table": table,
        # A missing value has a key of the field, not of the table.
        "fields": [field] if value is None else sharing,
        "key": f"{key_1.item():#018x}",
        "num_shards": opened.manifest.num_shards,
        "shard": shard_of(key_1, opened.manifest.num_shards).item(),
        "commit": {"number": opened.held.number, "name": opened.manifest.name, "step": opened.step},
        **_described(opened.layout, logged),
        "weights": weights_C.tolist(),
        "weights_norm": _norm(weights_C),
        "state_norms": _state_norms(opened.layout, logged) if logged else {},
        "finished": is_finished(run_dir),
    }
    return found | {"commits": [_of_commit(opened.layout, committed) for committed in history]}


def parse_value(text: str, features: Features) -> tuple[str, int | str | None]:
    """Field and value of a text FIELD=VALUE. Raises ValueError if there is no such field, or the value is of another
    kind than the field's."""
    names = [category.name for category in features.categories]
    # A name may have an equals sign, too.
    begun = [name for name in names if text.startswith(f"{name}=")]
    field = max(begun, key=len, default=text.partition("=")[0])
    if not begun and (field in names or "=" not in text):
        raise ValueError(
            f"{shortened(text)}: expected FIELD=VALUE, such as {field if field in names else names[0]}=..."
        )
    if field not in names:
        raise ValueError(_unknown_field(field, names, features))
    given = text[len(field) + 1 :]
    if given == "null":
        return field, None
    if features.kinds[field].endswith("integers"):
        return field, _integer(field, given)
    return field, _quoted(field, given) if given.startswith('"') else given


def _unknown_field(field: str, names: list[str], features: Features) -> str:
    others = {number.name for number in features.numbers} | set(features.labels)
    if field in others:
        return f"{field} is a number or a label, and only values of categorical fields have rows: {', '.join(names)}"
    return f"the run has no categorical field {shortened(field)}{did_you_mean(field, names)[1]}"


def _integer(field: str, given: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", given) or not LEAST <= int(given) <= MOST:
        raise ValueError(
            f"{field}={shortened(given)}: the values of {field} are integers in the training data; give one of 64 "
            "bits, or null for a missing value"
        )
    return int(given)


def _quoted(field: str, given: str) -> str:
    try:
        value = json.loads(given)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{field}={shortened(given)}: a text that begins with a quote is read as JSON: {error.msg}"
        ) from None
    return str(value)


def _typed(value: int | str | None) -> pa.Array | list[Any]:
    return pa.array([value], pa.uint64()) if isinstance(value, int) and value >= 1 << 63 else [value]


def _weights(opened: OpenedCommit, logged: LoggedRow | None, key_1: U64) -> F32:
    """[C] weights as an evaluation of the commit reads them: caught up, or those of a first row."""
    saved = merge_dense(opened.held.load_replicas())
    caught_up = CaughtUp(opened.workflow.optimizer, opened.layout, opened.features, saved, opened.step)
    weights_1C = caught_up.catch_up(logged.row_W[None].copy()) if logged else caught_up.first_weights(key_1)
    weights_C: F32 = weights_1C[0]
    return weights_C


def _state_norms(layout: RowLayout, logged: LoggedRow) -> dict[str, float]:
    row_X, described = widened(layout, logged.row_W[None])[0], layout.wide.describe()
    return {name: _norm(row_X.view(np.float32)[slice(*described[name])]) for name in STATE[layout.optimizer]}


def _norm(values_N: F32) -> float:
    return float(np.linalg.norm(values_N.astype(np.float64)))


def _described(layout: RowLayout, logged: LoggedRow | None) -> dict[str, Any]:
    if logged is None:
        return {"known": False}
    return {
        "known": True,
        "count": int(logged.row_W[layout.last_step_at + 1]),
        "last_step": int(logged.row_W[layout.last_step_at]),
        "file": str(logged.file),
        "row": logged.number,
        "offset": logged.offset,
    }


def _of_commit(layout: RowLayout, committed: CommittedRow) -> Mapping[str, Any]:
    return {
        "number": committed.commit,
        "name": committed.name,
        "step": committed.step,
        "change": committed.change,
        **_described(layout, committed.logged),
    }
