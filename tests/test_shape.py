"""Limits that keep classes readable: 200 lines for a class, 7 parameters for a constructor written by hand. Of a model
the three that every model has do not count: the others are its `model.args`. And limits on what tests may know of
private names, which keep these free to change."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "pipeline"
MAX_LINES, MAX_PARAMETERS = 200, 7
MAX_READS, MAX_PATCHES = 70, 26
"""Private attributes that tests read, and those that they replace by name."""
OF_EVERY_MODEL = {"num_fields", "num_numbers", "embedding_dim"}


@pytest.fixture(scope="module")
def classes():
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def parameters(function):
    args = function.args
    names = {arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]}
    if names >= OF_EVERY_MODEL:
        names -= OF_EVERY_MODEL
    return len(names) - 1 + bool(args.vararg) + bool(args.kwarg)


def lines(node):
    return node.end_lineno - node.lineno + 1


def constructors(node):
    return [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]


@pytest.mark.parametrize(
    ("limit", "measure"),
    [(MAX_LINES, lambda node: [lines(node)]), (MAX_PARAMETERS, lambda node: map(parameters, constructors(node)))],
    ids=["lines", "parameters"],
)
def test_no_class_is_over_a_limit(classes, limit, measure):
    over = {f"{file}: {node.name}: {size}" for file, node in classes for size in measure(node) if size > limit}
    assert not over


def is_private(name):
    # What a namedtuple's `_replace` does is documented.
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name != "_replace"


def test_tests_use_few_private_names():
    """Reads are attributes of anything but `self` and `cls`; patches are `setattr(object, "_name", ...)`."""
    reads, patches = [], []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                    reads.append(f"{path.name}:{node.lineno}: {node.attr}")
            elif isinstance(node, ast.Call) and any(is_private(getattr(arg, "value", None)) for arg in node.args[1:2]):
                patches.append(f"{path.name}:{node.lineno}")
    assert len(reads) <= MAX_READS, reads
    assert len(patches) <= MAX_PATCHES, patches
