"""Command `schema`: prints the JSON schema of workflows, which editors use for completion and validation."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.arguments import schema_arguments
from pipeline.workflow import Workflow


def main(argv: Sequence[str] | None = None) -> int:
    """Print the schema. Return 0."""
    schema_arguments().parse_args(argv)
    schema = Workflow.model_json_schema()
    # A file may refer to its schema for editors.
    schema["properties"]["$schema"] = {"type": "string"}
    print(json.dumps(schema, indent=1))
    return 0
