"""A user's model class: the module of its workflow file, and a digest of the files that define it."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
import sysconfig
from importlib.util import decode_source
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = (
    *{f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")},
    f"{Path(__file__).parents[1]}/",
)
TIMES_RUN = count(1)
RUN_MARK = re.compile(r"__run_\d+$")
DIGEST = "__code_digest__"
"""Name, in a module of a workflow file or its folder, of the digest of the code with which it was run."""
APPENDED: list[str] = []
"""Folders of workflow files that were added to `sys.path`, the last one first."""
NEIGHBOURS: set[str] = set()
"""Names of the modules that workflow files imported from their folders."""
EDITED = "the file of model.kind {kind}, or one that it imports, was edited since the run was trained with it"


def plain_name(module: str) -> str:
    """Name of a module without the number that `run_file` added."""
    return RUN_MARK.sub("", module)


def run_file(name: str, file: Path) -> ModuleType:
    """Run the current content of a file as a new module, `name` and a number. What it imports from its folder is read
    again. Raises what the file raises, OSError if it cannot be read, and SyntaxError if it is not valid Python."""
    text, folder = decode_source(file.read_bytes()), str(file.parent.absolute())
    module = ModuleType(f"{name}__run_{next(TIMES_RUN)}")
    module.__file__ = str(file.absolute())
    while NEIGHBOURS:
        sys.modules.pop(NEIGHBOURS.pop(), None)
    importlib.invalidate_caches()
    # Added folders come last, so that no file next to the workflow shadows a library.
    sys.path[:] = [each for each in sys.path if each not in APPENDED]
    if folder not in sys.path:
        APPENDED[:] = [folder, *(each for each in APPENDED if each != folder)]
    sys.path += APPENDED
    # The plain name lets a workflow that the file itself reads refer to a class in the file.
    sys.modules |= {name: module, module.__name__: module}
    before, writes = {*sys.modules}, sys.dont_write_bytecode
    # Bytecode of a neighbour would hide an edit within the same second.
    sys.dont_write_bytecode = True
    try:
        exec(compile(text, module.__file__, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name], sys.modules[module.__name__]
        raise
    finally:
        sys.dont_write_bytecode = writes
        imported = [sys.modules[each] for each in sorted({*sys.modules} - before) if is_own(sys.modules[each])]
        near = [each for each in imported if str(each.__file__).startswith(f"{folder}/") and DIGEST not in vars(each)]
        NEIGHBOURS.update(each.__name__ for each in near)
    of_near = _hash(*map(_code_of, near))
    for each in near:
        vars(each)[DIGEST] = of_near
    vars(module)[DIGEST] = _hash(_code_of(module), of_near)
    return module


def is_own(module: ModuleType) -> bool:
    """True if a module has a file, outside this package and the installed libraries."""
    file = getattr(module, "__file__", None) or ""
    return bool(file) and not (file.startswith(LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file)


def code_digest(kind: Any) -> str:
    """Digest of the files of a user's class and its bases, and of what a workflow file imports from its folder; empty
    if there are none, or if a module was run again since, and has another class of that name."""
    parts = []
    for each in getattr(kind, "__mro__", (kind,)):
        module = sys.modules.get(each.__module__)
        if module and is_own(module):
            if vars(module).get(each.__qualname__, each) is not each or not Path(str(module.__file__)).is_file():
                return ""
            parts.append(vars(module).get(DIGEST) or _hash(_code_of(module)))
    return f"file {sys.version_info[0]}.{sys.version_info[1]} {_hash(kind.__qualname__, *parts)}" if parts else ""


def is_other_code(before: str, now: str) -> bool:
    """True if two digests show that a class was edited; False if one is unknown or from another Python version."""
    return before != now and before.rpartition(" ")[0] == now.rpartition(" ")[0]


def _code_of(module: ModuleType) -> str:
    """Statements of a module's file, without comments and assignments of values of this package, such as a workflow."""
    content = Path(str(module.__file__)).read_bytes()
    settings = {n for n, value in vars(module).items() if type(value).__module__.startswith("pipeline.")}
    try:
        body = ast.parse(content).body
    except (SyntaxError, ValueError):
        return repr(content)
    kept = (n for n in body if not (isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in settings))
    return "\n".join(map(ast.dump, kept))


def _hash(*parts: str) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
