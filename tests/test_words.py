"""Words that a linter can keep: a docstring begins with a noun or a verb, so that it can be read by itself."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "pipeline"
FRAGMENTS = {"Of", "Those", "That", "With", "By", "In", "From", "What", "Which", "Whether", "Whose"}
"""First words of an answer to a question that only the name above asks."""


def docstrings():
    """Where each is, and its first word."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield f"{file.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}", text.split(maxsplit=1)[0]


def test_docstrings_begin_with_a_noun_or_a_verb():
    found = list(docstrings())
    assert len(found) > 1000
    assert not [where for where, first in found if first.strip(":,.") in FRAGMENTS]
