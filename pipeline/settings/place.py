"""Locations of mistakes: the file and line of user code where an exception was raised."""

from __future__ import annotations

import builtins
import inspect
import pkgutil
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

import pydantic
from pydantic import ValidationError

from pipeline.errors import did_you_mean
from pipeline.own_code.code import LIBRARIES
from pipeline.settings.problems import problems

PACKAGE = Path(__file__).parents[1]
NOT_OF_USER = (f"{PACKAGE}/", f"{Path(str(pydantic.__file__)).parent}/")


def message_of(error: Exception, path: Path) -> str:
    """Message for an exception caused by a workflow file or a file that it imports: one line per mistake."""
    frame = _last_of_user(error.__traceback__)
    if frame is None:
        return f"{path}: {type(error).__name__}: {error}"
    file = path if Path(frame.tb_frame.f_code.co_filename) == path.absolute() else frame.tb_frame.f_code.co_filename
    texts = [p.text for p in problems(error)] if isinstance(error, ValidationError) else [_with_hint(error, frame)]
    return "\n       ".join(f"{file}, line {frame.tb_lineno}: {text}" for text in texts)


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


def _with_hint(error: Exception, frame: TracebackType) -> str:
    """Text of an error. For a name that does not exist, it suggests the name that was probably meant; for a field
    without its name, how to write it."""
    if isinstance(error, TypeError) and "BaseModel.__init__() takes" in str(error):
        return f"TypeError: {error}; name the fields of settings, such as Category(name='user')"
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
