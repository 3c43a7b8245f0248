"""Limits that keep classes readable: 200 lines for a class, 7 parameters for a constructor written by hand. Of a model
the three that every model has do not count: the others are its `model.args`."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pipeline"
MAX_LINES, MAX_PARAMETERS = 200, 7
EXCEPTIONS = {"RowOptimizer"}
"""Classes that are still over a limit; none may be added."""
OF_EVERY_MODEL = {"num_fields", "num_numbers", "embedding_dim"}
CLASSES = [
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
def test_no_class_is_over_a_limit(limit, measure):
    over = {
        f"{file}: {node.name}: {size}"
        for file, node in CLASSES
        for size in measure(node)
        if size > limit and node.name not in EXCEPTIONS
    }
    assert not over
