"""Checks of what a kernel is given, where it is entered: a compiled loop does not notice the end of an array."""

from __future__ import annotations

from pipeline.kernels import cpu


def need(room: int, used: int) -> None:
    """Raise IndexError, with both numbers, if a kernel would use more items of an array than there are: a mistake of
    its caller. A slice that goes beyond the end of an array has fewer items than its bounds say."""
    if room < used:
        raise IndexError("an array is too short for a kernel: it has this many items, and the kernel uses", room, used)


need_cpu = cpu(need)
"""`need` for compiled code. A call of it from Python takes longer."""


@cpu
def need_index(index: int, room: int) -> None:
    """Raise IndexError, with both numbers, if there is no such item: for code that computes its address."""
    if index < 0 or index >= room:
        raise IndexError("a kernel has this index for an array with this many items", index, room)
