"""Errors that end a run, or a stretch of it."""

from __future__ import annotations


def error_text(error: Exception) -> str:
    """Text of an error for the user."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error or type(error).__name__}): lower storage's caps, or free memory for this process"
    return str(error)


class PipelineError(RuntimeError):
    """A failure that ends the run. A failed stage's message names the stage and the block, and keeps the cause."""


class OutOfTurn(PipelineError):
    """A stage was called for a block that is not its next one, or in a process where its run is not open.

    Stages have state, so such a call does nothing but raise. It happens when Dask reruns a task whose result it lost.
    """


class LostTouch(PipelineError):
    """A stage failed because another worker did not take part in a collective, or is gone."""
