"""python -m pipeline schema: the JSON schema of workflows, with which an editor completes and checks their fields."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from pipeline.workflow import Workflow


def main(argv: Sequence[str] | None = None) -> int:
    """Print the schema. Always returns 0."""
    argparse.ArgumentParser(prog="python -m pipeline schema", description=__doc__).parse_args(argv)
    schema = Workflow.model_json_schema()
    # A file may name its schema for editors.
    schema["properties"]["$schema"] = {"type": "string"}
    print(json.dumps(schema, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
