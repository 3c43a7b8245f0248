"""A text table of a given width: columns that it must have, and columns that are left out if they do not fit."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


class RunsTable:
    """Columns in the order in which they are added; no text is ever cut."""

    def __init__(self, width: int) -> None:
        self._left = width + len(GAP)
        self._columns: list[list[str]] = []
        self.left_out: list[str] = []
        """Names of the columns that did not fit."""

    def must(self, head: str, cells: Sequence[str], left: bool = False) -> None:
        """Add a column. `head`: its title, on lines; `left`: align it to the left."""
        lines = head.split("\n")
        wide = max(map(len, [*lines, *cells]))
        lines = [""] * (2 - len(lines)) + lines
        column = [f"{text:<{wide}}" if left else f"{text:>{wide}}" for text in (*lines, *cells)]
        self._columns.append([*column[:2], "-" * wide, *column[2:]])
        self._left -= wide + len(GAP)

    def may(self, head: str, cells: Sequence[str], left: bool = False) -> None:
        """Add a column if it fits; otherwise it is among those left out. One without a value is not named."""
        if {*cells} == {"-"}:
            return
        if max(map(len, [*head.split("\n"), *cells])) + len(GAP) <= self._left:
            self.must(head, cells, left)
        else:
            self.left_out.append(head.replace(".\n", ".").replace("\n", " "))

    def __str__(self) -> str:
        return "\n".join(GAP.join(cells).rstrip() for cells in zip(*self._columns, strict=True))
