"""Check before the run that a dense model can be compiled on this machine."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline.machine.compiler import compiler, try_compiler

OR_NOT = "or set model.compile to false"


def check_compiler(on_gpu: bool) -> None:
    """Raises ValueError if the compiler is missing or does not work. Compiled code in the cache of an earlier run does
    not replace it, since torch compiles a small program in any case."""
    if wrong := try_compiler(compiler()):
        raise ValueError(
            f"model.compile needs a C++ compiler with OpenMP and the headers of Python, and {wrong}; install g++ and "
            f"python3-dev, name a compiler with CXX=, {OR_NOT}"
        )
    if on_gpu and find_spec("triton") is None:
        raise ValueError(f"model.compile needs triton on a GPU, which is not installed: pip install triton, {OR_NOT}")
