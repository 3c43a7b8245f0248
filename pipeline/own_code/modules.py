"""User modules, run from source text that is read once. A module's name contains a digest of its text and of all
modules that it imports from its folder, so each version has separate classes, in this process and in workers."""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.own_code.code import OWN_PACKAGE, code_digest, is_library

Texts = Mapping[str, tuple[str, str]]
"""Path and source text of modules, by name."""
TEXT_MARK = re.compile(r"_text_[0-9a-f]{16}(?=\.|$)")
APPENDED: set[str] = set()
"""Folders of workflow files that were added to `sys.path`."""


class _FromTexts(MetaPathFinder, Loader):
    """Finder and loader of the modules whose text is known."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str, dict[str, str]]] = {}
        """For each module name: path, text, and the names, with digests, of the modules imported from its folder."""

    def add(self, texts: Texts) -> None:
        tops = {plain_name(name.partition(".")[0]): name.partition(".")[0] for name in texts}
        self.known |= {name: (*found, tops) for name, found in texts.items()}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.known:
            return None
        spec = ModuleSpec(name, self, origin=(file := self.known[name][0]), is_package=Path(file).stem == "__init__")
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(Path(file).parent))
        return spec

    def exec_module(self, module: ModuleType) -> None:
        file, text, tops = self.known[module.__name__]
        own = {**vars(builtins), "__import__": functools.partial(_import, tops)}
        module.__dict__["__builtins__"] = own
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)


FROM_TEXTS = _FromTexts()
sys.meta_path.insert(0, FROM_TEXTS)


def _import(tops: Mapping[str, str], name: str, *args: Any, **named: Any) -> Any:
    """Python's import, with modules from the importing module's folder renamed as `tops` says."""
    level = args[3] if len(args) > 3 else named.get("level", 0)
    top, dot, rest = name.partition(".")
    return builtins.__import__(name if level else f"{tops.get(top, top)}{dot}{rest}", *args, **named)


def plain_name(module: str) -> str:
    """Name of a module without the digest of its text."""
    return TEXT_MARK.sub("", module)


def run_file(name: str, file: Path) -> ModuleType:
    """Run the current content of a file as a module whose name without the digest is `name`. Raises what the file
    raises, OSError if it cannot be read, and SyntaxError if it is not valid Python."""
    folder = file.parent.absolute()
    texts = _texts(name, file.absolute(), folder)
    FROM_TEXTS.add(texts)
    # For imports by computed names. The folder comes last, so that no file next to the workflow shadows a library.
    if str(folder) not in sys.path:
        APPENDED.add(str(folder))
        sys.path.append(str(folder))
    # The plain name lets a workflow that the file itself reads refer to a class in the file.
    return _run(next(iter(texts)), name)


def _run(*names: str) -> ModuleType:
    """Run a module whose text is known under the first of its names, even if it ran before."""
    spec = FROM_TEXTS.find_spec(names[0])
    assert spec, "its text is known"
    module = importlib.util.module_from_spec(spec)
    sys.modules |= dict.fromkeys(names, module)
    try:
        FROM_TEXTS.exec_module(module)
    except BaseException:
        for name in names:
            del sys.modules[name]
        raise
    return module


def _texts(name: str, file: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """Path and text, by name with digest, of a module (first) and of every module in `folder` that it imports."""
    found: dict[str, tuple[str, str]] = {}
    imports: dict[str, set[str]] = {}
    waiting = [(name, file)]
    while waiting:
        module, path = waiting.pop()
        if module in found:
            continue
        # Read as bytes, since the file declares its encoding, as in Python.
        found[module] = str(path), importlib.util.decode_source(path.read_bytes())
        named = set(_imports(module, *found[module]))
        own = [(each, at) for each in named if (at := _file_of(each, folder))]
        imports.setdefault(module.partition(".")[0], set()).update(each.partition(".")[0] for each, _ in own)
        waiting += own
    tops = {top: _digest(top, folder, found, imports) for top in imports}
    return {_named(module, tops): found[module] for module in found}


def _named(module: str, digests: Mapping[str, str]) -> str:
    top, dot, rest = module.partition(".")
    return f"{top}_text_{digests[top]}{dot}{rest}"


def _digest(top: str, folder: Path, found: Texts, imports: Mapping[str, set[str]]) -> str:
    """Digest of all texts that a module or package can reach. It includes the folder, since a module may read files
    there."""
    reached: set[str] = set()
    waiting = [top]
    while waiting:
        if (each := waiting.pop()) not in reached:
            reached.add(each)
            waiting += imports[each]
    parts = sorted((module, found[module][1]) for module in found if module.partition(".")[0] in reached)
    return hashlib.blake2b(repr((str(folder), parts)).encode(), digest_size=8).hexdigest()


def _imports(module: str, file: str, text: str) -> Iterator[str]:
    """Names of all modules that a text may import, at any place in it, and of the packages that contain them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # Running the text reports the error.
    package = module.split(".") if Path(file).stem == "__init__" else module.split(".")[:-1]
    names: list[str] = [".".join(package)] if package else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            before = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*before, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _file_of(module: str, folder: Path) -> Path | None:
    """File of a module in `folder`; None if the module comes from elsewhere."""
    inner = folder.joinpath(*module.split("."))
    file = next((f for f in (inner / "__init__.py", inner.with_name(f"{inner.name}.py")) if f.is_file()), None)
    top = module.partition(".")[0]
    if not file or top == OWN_PACKAGE or top in sys.stdlib_module_names:
        return None
    # A library takes precedence over a file of the same name; a file next to another workflow does not.
    spec = PathFinder.find_spec(top, [*(each for each in sys.path if each not in APPENDED), str(folder)])
    return file if spec and str(spec.origin or "").startswith(f"{folder}/") else None


@dataclass(frozen=True, slots=True)
class ClassText:
    """A class in a form from which another process can make it."""

    module: str
    name: str
    """Qualified name within the module."""
    texts: Texts
    """Texts of the module and of its imports from its folder; empty for a library's module, which is imported by
    name."""
    code: str
    """Digest of the code that it runs."""

    @property
    def named(self) -> str:
        """Name of the class in a serialized workflow."""
        return f"{plain_name(self.module)}.{self.name.rpartition('.')[2]}"

    def make(self) -> Any:
        """Make the class. Raises ValueError, with the file, if its module fails or the class differs in this
        process."""
        FROM_TEXTS.add(self.texts)
        file = self.texts[self.module][0] if self.texts else self.module
        try:
            made: Any = sys.modules.get(self.module)
            if not made:
                inner = self.module.rpartition(".")[0] in self.texts
                # As in the driver, the module may read a workflow that names its class by the module's plain name.
                names = self.module, plain_name(self.module)
                made = _run(*names) if self.texts and not inner else importlib.import_module(self.module)
            for part in self.name.split("."):
                made = getattr(made, part)
        except Exception as error:
            raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
        if code_digest(made) != self.code:
            raise ValueError(
                f"model.kind {self.name}: {file} was edited after one of the processes had imported it, so the class "
                "of this worker is not the driver's; start both again"
            )
        return made


def text_of(kind: Any) -> ClassText:
    """Return what a worker needs to make a model class. Raises ValueError if its source text is not available."""
    module, name = kind.__module__, kind.__qualname__
    code = code_digest(kind)
    if module in FROM_TEXTS.known:
        top = module.partition(".")[0]
        tops = set(FROM_TEXTS.known[module][2].values())
        texts = {n: found[:2] for n, found in FROM_TEXTS.known.items() if n.partition(".")[0] in tops | {top}}
        return ClassText(module, name, texts, code)
    file = getattr(sys.modules.get(module), "__file__", None)
    if "<locals>" in name or not file:
        raise ValueError(
            f"model.kind {name} is defined in {'a function' if '<locals>' in name else 'a notebook or at a prompt'}, "
            "and workers are separate processes, which cannot make it: write it to a file, such as my_model.py, "
            "and import it from there; or train with one worker, in this process"
        )
    if is_library(module):
        return ClassText(module, name, {}, code)
    path = Path(file).absolute()
    # With `python -m package.script`, the module's real name is in its spec.
    module = getattr(getattr(sys.modules[module], "__spec__", None), "name", None) or module
    folder = path.parents[module.count(".") + (path.stem == "__init__")]
    texts = _texts(module, path, folder)
    return ClassText(next(iter(texts)), name, texts, code)
