"""The command `schema`: the JSON schema of workflows, with which an editor completes and checks their fields."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.arguments import schema_arguments
from pipeline.workflow import Workflow


def main(argv: Sequence[str] | None = None) -> int:
    """Print the schema. Always returns 0."""
    schema_arguments().parse_args(argv)
    schema = Workflow.model_json_schema()
    # A file may name its schema for editors.
    schema["properties"]["$schema"] = {"type": "string"}
    print(json.dumps(schema, indent=1))
    return 0
