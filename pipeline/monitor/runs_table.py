"""A text table of limited width, with required columns and columns that are omitted if they do not fit."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


class RunsTable:
    """Table with columns in the order in which they are added. Text is never truncated."""

    def __init__(self, width: int) -> None:
        self._left = width + len(GAP)
        self._columns: list[list[str]] = []
        self.left_out: list[str] = []
        """Names of the columns that did not fit."""

    def must(self, head: str, cells: Sequence[str], left: bool = False) -> None:
        """Add a required column. `head`: its title, of one or two lines; `left`: align it to the left."""
        lines = head.split("\n")
        wide = max(map(len, [*lines, *cells]))
        lines = [""] * (2 - len(lines)) + lines
        column = [f"{text:<{wide}}" if left else f"{text:>{wide}}" for text in (*lines, *cells)]
        self._columns.append([*column[:2], "-" * wide, *column[2:]])
        self._left -= wide + len(GAP)

    def may(self, head: str, cells: Sequence[str], left: bool = False) -> None:
        """Add a column if it fits, or else record it in `left_out`. A column without values is ignored."""
        if {*cells} == {"-"}:
            return
        if max(map(len, [*head.split("\n"), *cells])) + len(GAP) <= self._left:
            self.must(head, cells, left)
        else:
            self.left_out.append(head.replace(".\n", ".").replace("\n", " "))

    def __str__(self) -> str:
        return "\n".join(GAP.join(cells).rstrip() for cells in zip(*self._columns, strict=True))
