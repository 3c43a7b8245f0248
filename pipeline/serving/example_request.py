"""Example of an inference request with two rows of the run's data, and its answer."""

from __future__ import annotations

import json
import math
from itertools import chain
from typing import Any

import pyarrow as pa

from pipeline.data.files import SchemaCheck, columns_of, resolve
from pipeline.features.times import TimeInput
from pipeline.files.description import inner_of_name
from pipeline.files.flat import open_file
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.http.answer import output_of
from pipeline.serving.http.request import read_request
from pipeline.serving.open_servable import OpenServable
from pipeline.serving.served_model import InputSpec, inputs_of

EXAMPLE_ROWS = 2
MADE_UP: dict[str, list[Any]] = {
    "FP32": [0.5, 1.5], "FP64": [0.5, 1.5], "INT64": [1, 2], "UINT64": [1, 2], "BYTES": ["a", "b"],
    "BOOL": [False, True],
}  # fmt: skip
"""Values by datatype, used if the run's data can no longer be read."""
EXAMPLE_MEMORY = 64 << 20


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
        columns = example_rows(opened)
        tensors = list(chain.from_iterable(_tensors(spec, columns[spec.name]) for spec in inputs))
    except (ValueError, OSError, pa.ArrowException):
        tensors = list(chain.from_iterable(_tensors(spec, made_up(spec)) for spec in inputs))
    return ('{"inputs": [\n  ' + ",\n  ".join(map(json.dumps, tensors)) + "\n]}\n").encode()


def made_up(spec: InputSpec) -> list[Any]:
    values = [None, None] if spec.time else MADE_UP[spec.datatype]
    return [[value] for value in values] if spec.is_list else values


def example_rows(opened: OpenedCommit) -> dict[str, list[Any]]:
    """Values of each input in two rows of the run's data. Raises ValueError, OSError or ArrowException if they cannot
    be read."""
    data, features = opened.workflow.data, opened.features
    columns = [column for column in columns_of(data) if column.has_rows or column.number or column.sequence]
    names = [spec.name for spec in inputs_of(features)]
    times = features.times
    for split in ("test", "validation", "train"):
        for path in resolve(data, split, opened.description):
            with open_file(path) as file:
                SchemaCheck(columns, features.kinds).check(path, file.schema_arrow)
                batch = next(file.iter_batches(EXAMPLE_ROWS, columns=names, use_threads=False), None)
                if batch is not None and len(batch) == EXAMPLE_ROWS:
                    return {name: _values(batch.column(name), times.get(name)) for name in names}
    raise ValueError("no file has two rows")


def _values(column: pa.Array, time: TimeInput | None) -> list[Any]:
    """Values of a column; times are integers since 1970, in the announced unit."""
    return list((time.counts(pa.chunked_array([column])) if time else column).to_pylist())


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
