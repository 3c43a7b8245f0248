"""Error sites: the places of the package that raise an error with a text for the user, each under a key that stays when
lines move and changes when the message does. `record` has each error that is raised there written to a file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.abc
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "pipeline"
NOT_FOR_USERS = {
    # A mistake of ours, which ends in a traceback.
    "AssertionError", "AttributeError", "OutOfTurn", "OutOfOrder",
    # Caught before anybody sees it.
    "Disconnected", "KeyboardInterrupt", "_Ended",
    # The end that a signal asks for; it has no text.
    "interruption",
}  # fmt: skip
PASSING_ON = ("pipeline.driver", "pipeline.worker", "pipeline.cluster")
"""Modules that put words of their own around any error; it is shown without them."""
SAID = "__said__"


def sites(tree: ast.Module, module: str) -> dict[str, ast.Raise]:
    """Error sites of a module by key: the module, the function, and a hash of the constant parts of the message."""
    found: dict[str, ast.Raise] = {}
    seen = Counter[str]()
    for function, node in _raises(tree, ""):
        call = node.exc
        if not isinstance(call, ast.Call) or _name(call.func) in NOT_FOR_USERS:
            continue
        constants = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
        words = [value for value in constants if isinstance(value, str)]
        if not words and any(isinstance(part, ast.Call) and _name(part.func) == "str" for part in call.args):
            # The text is that of another error.
            continue
        place = f"{module.removeprefix('pipeline.')}:{function}"
        told = f"{place} {words}"
        seen[told] += 1
        found[f"{place} {hashlib.sha256(f'{told} {seen[told]}'.encode()).hexdigest()[:6]}"] = node
    return found


def all_sites() -> list[str]:
    """Keys of all error sites of the package, in the order of the source."""
    keys: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("pipeline", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        keys += sites(ast.parse(path.read_text()), module)
    return keys


def _raises(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Raise]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _raises(child, f"{function}.{child.name}".strip("."))
        elif isinstance(child, ast.Raise):
            yield function, child
        else:
            yield from _raises(child, function)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Marking(SourceFileLoader):
    """Loads a module with every `raise X(...)` of its error sites as `raise __said__(key, X(...))`."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source, past the cache of compiled files."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for key, node in sites(tree, fullname).items():
            assert node.exc is not None
            name, arguments = ast.Name(SAID, ast.Load()), [ast.Constant(key), node.exc]
            node.exc = ast.copy_location(ast.Call(name, arguments, []), node.exc)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class MarkedPackage(importlib.abc.MetaPathFinder):
    """Finds the modules of the package before others do."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE.name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin and spec.origin.endswith(".py"):
            spec.loader = Marking(fullname, spec.origin)
        return spec


def record(folder: Path) -> None:
    """Append each error that is raised at a site from now on, and the present test, to a file of the process that
    raises it: this one, or one that it starts."""
    if hasattr(builtins, SAID):
        return
    assert not [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name], "it is imported already"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["RECORD_MESSAGES"] = str(folder.absolute())
    paths = (str(Path(__file__).parent / "children"), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    # Opened once: some tests watch what a process opens.
    file = os.open(folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    told = set[str]()

    def said(key: str, error: Exception) -> Exception:
        from pipeline.errors import error_text

        error.site = key  # type: ignore[attr-defined]
        text = error_text(error)
        lines = [{"site": key, "text": text, "test": os.environ.get("PYTEST_CURRENT_TEST", ""), "inside": False}]
        # What an error says around another one, a user sees of both.
        inner, around = sys.exc_info()[1], text
        while inner is not None and not f"pipeline.{key}".startswith(PASSING_ON):
            if hasattr(inner, "site") and str(inner) and str(inner) in around and str(inner) != around:
                lines.append(lines[0] | {"site": inner.site, "inside": True})
            inner = inner.__cause__ or inner.__context__
        new = {json.dumps(line) + "\n" for line in lines} - told
        told.update(new)
        os.write(file, "".join(new).encode())
        return error

    setattr(builtins, SAID, said)
    sys.meta_path.insert(0, MarkedPackage())
