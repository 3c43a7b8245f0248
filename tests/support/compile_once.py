"""Shared compilation of kernels: when several test processes need the same kernel, one compiles it while the others
wait, then load it."""

import fcntl
from pathlib import Path
from typing import Any

from numba import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

import pipeline.kernels as kernels


def compile_once() -> None:
    """Make the compilation of a kernel in this process wait for that of the same kernel in other processes."""
    compiled, folder = Dispatcher.compile, Path(config.CACHE_DIR) / "locks"
    folder.mkdir(parents=True, exist_ok=True)

    def compile_locked(dispatcher: Any, signature: Any) -> Any:
        function = dispatcher.py_func
        if not function.__module__.startswith(kernels.__name__):
            return compiled(dispatcher, signature)
        # Only one thread per process compiles at a time, and it locks a kernel before the kernel's callees, so there is
        # no cycle.
        with global_compiler_lock, open(folder / f"{function.__module__}.{function.__qualname__}", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return compiled(dispatcher, signature)

    Dispatcher.compile = compile_locked
