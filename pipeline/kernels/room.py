"""Checks of array sizes at the entry of kernels, since compiled loops do not check bounds."""

from __future__ import annotations

from pipeline.kernels import cpu


def need(room: int, used: int) -> None:
    """Raise IndexError, with both numbers, if a kernel would access more items than an array has: a bug in the caller.
    A slice beyond the end of an array has fewer items than its bounds suggest."""
    if room < used:
        raise IndexError("an array is too short for a kernel: number of items, number that it uses", room, used)


need_cpu = cpu(need)
"""`need` for compiled code. Calling it from Python is slower than calling `need`."""


@cpu
def need_index(index: int, room: int) -> None:
    """Raise IndexError, with both numbers, if the index is out of range. For code that computes addresses itself."""
    if index < 0 or index >= room:
        raise IndexError("an index of a kernel is out of range: index, and number of items", index, room)
