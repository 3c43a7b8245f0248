"""Words that a linter can keep: a docstring begins with a noun or a verb, so that it can be read by itself; a public
name is defined in one module, so that it means one thing."""

import ast
from collections import defaultdict
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


def definitions():
    """The modules that define each public name, but for what is a name of a type alone (T, F64, ...)."""
    modules = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            names = [node.name] if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else []
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
            for name in names:
                if len(name) > 3 and not name.startswith("_"):
                    modules[name].add(str(file.relative_to(PACKAGE)))
    return modules


def test_a_name_is_defined_in_one_module():
    modules = definitions()
    assert len(modules) > 1000
    # The entry of each command.
    modules.pop("main")
    assert not {name: sorted(where) for name, where in modules.items() if len(where) > 1}
