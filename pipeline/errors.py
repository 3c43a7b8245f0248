"""Errors that end a run, or a stretch of it."""

from __future__ import annotations


def error_text(error: Exception) -> str:
    """Return what an error says, in words."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error or type(error).__name__}): lower storage's caps, or leave this process more"
    return str(error)


class PipelineError(RuntimeError):
    """A stage failed; names stage and block, and keeps the cause."""


class OutOfTurn(PipelineError):
    """A stage was called for another block than its next, or in a process where its run is not open: it has state, so
    it does nothing. Dask runs tasks again whose results it lost."""


class LostTouch(PipelineError):
    """A stage failed since another worker did not come to a collective, or is gone."""
