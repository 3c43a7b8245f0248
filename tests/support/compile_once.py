"""Kernels that several test processes need at once are compiled by one of them; the others wait and load them."""

import fcntl
from pathlib import Path
from typing import Any

from numba import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

import pipeline.kernels as kernels


def compile_once() -> None:
    """Have the compilation of a kernel in this process wait for that of the same kernel in other processes."""
    compiled, folder = Dispatcher.compile, Path(config.CACHE_DIR) / "locks"
    folder.mkdir(parents=True, exist_ok=True)

    def compile_locked(dispatcher: Any, signature: Any) -> Any:
        function = dispatcher.py_func
        if not function.__module__.startswith(kernels.__name__):
            return compiled(dispatcher, signature)
        # One thread of a process compiles at a time, and locks a kernel before those that it calls: there is no cycle.
        with global_compiler_lock, open(folder / f"{function.__module__}.{function.__qualname__}", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return compiled(dispatcher, signature)

    Dispatcher.compile = compile_locked
