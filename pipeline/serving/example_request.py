"""Example of an inference request: two rows with every column that the model reads, and the command that sends them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from pipeline.serving.features import Features
from pipeline.serving.http.served import InputSpec
from pipeline.serving.servable import REQUEST_FILE

DATATYPES_OF_KINDS = {"integers": "INT64", "text": "BYTES"}
"""Datatype of the Open Inference Protocol that the metadata announces, by the kind of a column's values."""
EXAMPLE_LENGTHS = [2, 1]
"""Length of the list of each row."""
EXAMPLE_VALUES: dict[str, list[Any]] = {"FP32": [0.5, 1.5], "INT64": [1, 2, 3], "BYTES": ["a", "b", "c"]}
"""Values of a column by its datatype: one for each row, and one more for the longer list."""


def inputs_of(features: Features) -> tuple[InputSpec, ...]:
    """Columns that the model reads: the numbers, then the categories."""
    numbers = [InputSpec(number.name, "FP32", is_list=False, required=True) for number in features.numbers]
    kinds = [(category.name, features.kinds[category.name]) for category in features.categories]
    categories = [
        InputSpec(name, DATATYPES_OF_KINDS[kind.removeprefix("lists of ")], kind.startswith("lists"), required=True)
        for name, kind in kinds
    ]
    return (*numbers, *categories)


def example_request(features: Features) -> bytes:
    """Body of a request with two rows, a tensor on each line. The values are made up; the shape is what a model with
    these features takes."""
    tensors = []
    for spec in inputs_of(features):
        num_values = sum(EXAMPLE_LENGTHS) if spec.is_list else len(EXAMPLE_LENGTHS)
        tensors.append(_tensor(spec.name, spec.datatype, EXAMPLE_VALUES[spec.datatype][:num_values]))
        if spec.is_list:
            tensors.append(_tensor(f"{spec.name}.lengths", "INT64", EXAMPLE_LENGTHS))
    return ('{"inputs": [\n  ' + ",\n  ".join(map(json.dumps, tensors)) + "\n]}\n").encode()


def _tensor(name: str, datatype: str, values: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}


def curl_line(folder: Path, model: str, address: str = "localhost:8000") -> str:
    """Command that sends the example of the servable in `folder` to a server."""
    data = shlex.quote(f"@{folder / REQUEST_FILE}")
    return f"curl -H content-type:application/json -d {data} {address}/v2/models/{model}/infer"
