"""Locations of mistakes: the file and line of user code where an exception was raised."""

from __future__ import annotations

import ast
import builtins
import inspect
import pkgutil
import re
import sys
import traceback
from itertools import islice
from pathlib import Path
from types import TracebackType

import pydantic
from pydantic import ValidationError

from pipeline.errors import did_you_mean
from pipeline.own_code.code import LIBRARIES
from pipeline.settings.problems import Location, class_named, problems

PACKAGE = Path(__file__).parents[1]
NOT_OF_USER = (f"{PACKAGE}/", f"{Path(str(pydantic.__file__)).parent}/")


def message_of(error: Exception, path: Path) -> str:
    """Message for an exception caused by a workflow file or a file that it imports: one line per mistake."""
    frame = _last_of_user(error.__traceback__)
    if frame is None:
        return f"{path}: {type(error).__name__}: {error}"
    file = path if Path(frame.tb_frame.f_code.co_filename) == path.absolute() else frame.tb_frame.f_code.co_filename
    call = _call_at(frame)
    if isinstance(error, ValidationError):
        lines = []
        for problem in problems(error):
            line = None if problem.is_missing else _line_of(call, problem.path)
            lines.append(f"{file}, line {line or frame.tb_lineno}: {problem.text}")
        return "\n       ".join(lines)
    return f"{file}, line {frame.tb_lineno}: {_by_name(error, call) or _with_hint(error, frame)}"


def place_of(error: BaseException) -> str:
    """File and line of the innermost frame of user code (outside this package and the libraries), to append to a
    message. Empty if there is none."""
    frame = _last_of_user(error.__traceback__, (*NOT_OF_USER, *LIBRARIES))
    return f" ({frame.tb_frame.f_code.co_filename}, line {frame.tb_lineno})" if frame else ""


def defined_at(function: object) -> str:
    """File and line where a function begins, to append to a message; empty if unknown."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)  # type: ignore[arg-type]
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def _last_of_user(trace: TracebackType | None, others: tuple[str, ...] = NOT_OF_USER) -> TracebackType | None:
    found = None
    while trace:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(others):
            found = trace
        trace = trace.tb_next
    return found


def _call_at(frame: TracebackType) -> ast.Call | None:
    """Call that raised, in the file's syntax tree."""
    code = frame.tb_frame.f_code
    try:
        tree = ast.parse(Path(code.co_filename).read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    at = next(islice(code.co_positions(), frame.tb_lasti // 2, None), None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and at == (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset):
            return node
    return None


def _line_of(call: ast.Call | None, path: Location) -> int | None:
    """Line of a field within the call that makes its class, or line of the class if the field is elsewhere."""
    keyword = next((k for k in call.keywords if path and k.arg == path[0]), None) if call else None
    if keyword is None:
        return None
    line, node = keyword.lineno, keyword.value
    for part in path[1:]:
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if part not in keys:
                break
            node = node.values[keys.index(part)]
        elif isinstance(node, ast.Tuple | ast.List) and isinstance(part, int) and part < len(node.elts):
            node = node.elts[part]
        else:
            break
        line = node.lineno
    return line


def _by_name(error: Exception, call: ast.Call | None) -> str | None:
    """Message about settings passed by position; None if that is not the cause."""
    if not isinstance(error, TypeError) or "BaseModel.__init__() takes" not in str(error) or not (call and call.args):
        return None
    name = ast.unparse(call.func)
    kind = class_named(name.rpartition(".")[2])
    first = next(iter(kind.model_fields)) if kind else "name"
    value = ast.unparse(call.args[0])
    return f"{name} takes its fields by name; write {name}({first}={value if len(value) < 60 else '...'})"


def _with_hint(error: Exception, frame: TracebackType) -> str:
    """Text of an error. For a name that does not exist, it suggests the name that was probably meant."""
    wrong, known = "", list[str]()
    if isinstance(error, ModuleNotFoundError):
        wrong = error.name or ""
        inside = [f"pipeline.{module.name}" for module in pkgutil.iter_modules([str(PACKAGE)])]
        known = [*inside, *(name for name in sys.modules if "." not in name)]
    elif isinstance(error, ImportError) and (found := re.match(r"cannot import name '(\w+)'", str(error))):
        wrong, known = found[1], dir(sys.modules.get(error.name or ""))
    elif isinstance(error, NameError):
        wrong, known = error.name or "", [*frame.tb_frame.f_globals, *dir(builtins)]
    close, hint = did_you_mean(wrong, known)
    text = traceback.format_exception_only(type(error), error)[-1].strip() if not str(error) else str(error)
    return f"{type(error).__name__}: {text}{hint if close else ''}"
