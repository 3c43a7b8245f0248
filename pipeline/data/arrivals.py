"""Files that came for training data with spans and are not taken: those that are not complete by `data.complete`, and
those that cannot be read. The spans that they may belong to wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache

import pyarrow as pa

from pipeline.data.identity import Begun, SplitIdentity, name_of
from pipeline.files import stores
from pipeline.files.description import Description
from pipeline.files.find import DataFile
from pipeline.messages.uris import cut
from pipeline.spans.times import LENGTHS, RowTimes
from pipeline.spans.waiting import Unread
from pipeline.workflow import Data


class Arrivals:
    """The files of a command that are not taken."""

    def __init__(self, data: Data, begun: Begun) -> None:
        self.unread: dict[str, Unread] = {}
        """These files, by name."""
        self.held: set[str] = set()
        """Names of the spans that wait for one of them."""
        self.holds_all = False
        """True if each span may have rows in one of them."""
        self.lines: list[str] = []
        """A line for each file of which this command is the first to say so."""
        self.copies: list[str] = []
        """The same for copies, of which nothing is lost."""
        self._data, self._begun, self._train = data, begun, begun.splits.get("train")
        self.before = (self._train.unread if self._train else None) or {}
        """Files that the last command did not take."""
        self._final = {name for name, _ in begun.files("train")}
        self._times, self._marks = RowTimes(data, Description()), cache(_lines_of)

    def complete(self, files: Iterable[DataFile]) -> list[DataFile]:
        """The files without those that are not complete."""
        found = []
        for file in files:
            name, rule = name_of(file, self._data.root), self._data.complete
            # Only files that are whole are in the log of a Delta table.
            if rule == "name" or name in self._final or file.version is not None or self._is_marked(file):
                found.append(file)
            else:
                where = "its folder has no _SUCCESS" if rule == "success" else f"no {rule[len('manifest:') :]} names it"
                self._leave(file, name, Unread(why="incomplete"), f"is not complete ({where}), so it is not taken yet")
        return found

    def leave_damaged(self, file: DataFile, name: str, error: Exception) -> None:
        """Note a file that cannot be read. Raises the error if it has another cause, or in a new run, which has no
        commit that remembers the file."""
        if self._begun.waiting is None or not isinstance(error.__cause__ or error, pa.ArrowException | OSError):
            raise error
        found = stores.stamp_of(str(file))
        stamp, was = f"{found.size} {found.version}", self.before.get(name)
        is_left = was is not None and was.stamp == stamp
        said = ", as before, so it is left out" if is_left else "; correct it, or the next command leaves it out"
        unread = Unread(why="left" if is_left else "unreadable", stamp=stamp)
        self._leave(file, name, unread, f"cannot be read{said} ({error})")

    def leave_copy(self, file: DataFile, name: str, other: DataFile) -> None:
        """Note a file with the bytes of another one."""
        self._leave(file, name, Unread(why="copy"), f"is a copy of {other}, so it is left out")

    def _leave(self, file: DataFile, name: str, unread: Unread, said: str) -> None:
        span = None if unread.why in ("left", "copy") else self._times.of_path(file, name)
        self.unread[name] = unread
        self.held |= {span} if span else set()
        holds_all = unread.why == "unreadable" and span is None
        self.holds_all |= holds_all
        if self.before.get(name) != unread:
            waits = "; no span is trained on now" if holds_all else f"; span {span} waits for it" if span else ""
            lines = self.copies if unread.why == "copy" else self.lines
            lines.append(f"{file} {said}{waits}")

    def num_closed(self, split: SplitIdentity) -> tuple[int | None, list[str]]:
        """See `Calendar`, and a line if that is because the last span has few rows. `split`: what this command has."""
        begun, data, calendar = self._begun, self._data, split.calendar
        if self.holds_all:
            return begun.begun, []
        if not calendar or not calendar.labels:
            return None, []
        labels, said = calendar.labels, list[str]()
        latest = labels.index(max(labels)) if data.spans_by in LENGTHS else len(labels) - 1
        closed = latest if latest >= begun.begun and not begun.close else len(labels)
        if data.close == "arrival":
            if closed > latest or not self._has_few(split, latest):
                return None, []
            rows = calendar.num_rows[latest]
            said = [f"span {labels[latest]} waits: {rows:,} rows, under 1 % of the day or hour before (or use --close)"]
        known = [*(self._train.spans or ()), *(begun.waiting.rows if begun.waiting else ())] if self._train else []
        # What an earlier command has closed stays closed until something else comes.
        return max(closed, (self._train.num_closed or 0) if self._train and [*labels] == known else 0), said

    def _has_few(self, split: SplitIdentity, latest: int) -> bool:
        """True if all rows of the latest span lie in files of the span before it, and are less than 1 % of its rows."""
        labels, calendar = split.spans or [], split.calendar
        before = max((label for label in labels if label < labels[latest]), default=None)
        if before is None or calendar is None or self._data.spans_by not in LENGTHS:
            return False
        number = labels.index(before)
        files = [{span for span, rows in file.spans or () if rows} for file in split.files]
        return 100 * calendar.num_rows[latest] < calendar.num_rows[number] and all(
            number in spans for spans in files if latest in spans
        )

    def _is_marked(self, file: DataFile) -> bool:
        """True if a folder of the file, within the place that was given, has the mark that makes the file complete."""
        place, options = cut(file.place)
        names = place.split("/")
        for depth in range(1, len(file.below.split("/")) + 1):
            folder, name = "/".join(names[:-depth]), "/".join(names[-depth:])
            lines = self._marks(f"{folder}/{self._data.complete.partition(':')[2] or '_SUCCESS'}{options}")
            if lines is not None and (self._data.complete == "success" or name in lines):
                return True
        return False


def _lines_of(place: str) -> Collection[str] | None:
    """Complete lines of a small file; None if it does not exist."""
    content = stores.read_small(place)
    return None if content is None else {line.strip().removeprefix("./") for line in content.decode().split("\n")[:-1]}
