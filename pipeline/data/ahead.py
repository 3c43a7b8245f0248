"""Row groups of object stores, fetched before they are needed, so that the wait for a store passes during training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.files import stores
from pipeline.files.find import DataFile
from pipeline.files.stores import PIECE, Stamp, StoredFile

REQUESTS = 8
"""Maximum number of concurrent requests. With 1 MB and 20 ms each, they use a bandwidth of 400 MB/s."""
HOLE = 1 << 18
"""Maximum number of bytes between two column chunks that are fetched for nothing, as their request costs more."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Used column chunks of a row group, which are fetched with one request for several that are close together."""

    file: StoredFile
    ranges: tuple[tuple[int, int], ...]
    """First byte of each piece, and the one after its last."""

    @property
    def num_bytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


def bytes_in_stores(groups: Sequence[tuple[Pieces, int]], window: int) -> tuple[int, int]:
    """Bytes of the largest row group, as it is fetched, and of all footers; and the bytes of a window of so many
    examples together with these. `groups`: row groups that are in stores, each with its number of rows."""
    largest = max((pieces.num_bytes for pieces, _ in groups), default=0)
    least = largest + sum(len(file.footer) for file in {pieces.file for pieces, _ in groups})
    of_example = max((pieces.num_bytes / num_rows for pieces, num_rows in groups), default=0.0)
    return least, int(window * of_example) + least


def ranges_of(chunks: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of the pieces that hold these column chunks; no chunk is cut."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(set(chunks)):
        if found and begin - found[-1][1] <= HOLE and end - found[-1][0] <= PIECE:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return tuple(found)


class ReadAhead:
    """Fetches row groups in the order in which they will be needed. What goes wrong is raised when one is taken."""

    def __init__(self) -> None:
        self.most_bytes = 0
        """Maximum number of bytes that are fetched, or kept, before they are needed."""
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        """Threads of requests for pieces, and one that then looks whether the file has changed."""
        self._begun: dict[Pieces, tuple[Future[list[tuple[int, bytes]]], list[Future[bytes]]]] = {}

    def take(self, wanted: Pieces, coming: Iterable[Pieces]) -> list[tuple[int, bytes]]:
        """Place and bytes of each piece of a row group. Of those that come next as many are fetched as there is room
        for; others that were begun are dropped. Raises OSError if it cannot be read, ValueError if it has changed."""
        requests, looks = self._pools = self._pools or (
            ThreadPoolExecutor(REQUESTS, "read ahead"), ThreadPoolExecutor(1, "look at store"),
        )  # fmt: skip
        room, later = self.most_bytes, dict.fromkeys((wanted,))
        for one in coming:
            if one not in later:
                room -= one.num_bytes
                if room < 0:
                    break
                later[one] = None
        for other in self._begun.keys() - later.keys():
            whole, parts = self._begun.pop(other)
            whole.cancel()
            for part in parts:
                part.cancel()
        for one in later:
            if one not in self._begun:
                parts = [requests.submit(one.file.fetch, *piece) for piece in one.ranges]
                self._begun[one] = looks.submit(_whole, one, parts), parts
        return self._begun.pop(wanted)[0].result()

    def close(self) -> None:
        """Wait for what is being fetched. May be called twice."""
        for pool in self._pools or ():
            pool.shutdown(cancel_futures=True)
        self._pools, self._begun = None, {}


def _whole(pieces: Pieces, parts: list[Future[bytes]]) -> list[tuple[int, bytes]]:
    for part in parts:
        # Not `wait`, which does not notice that a pool which is shut down cancels what it never began.
        part.exception()
    # After the last byte came: a file that is replaced while it is read would give pieces of both.
    was, now = pieces.file.stamp, stamp_of(pieces.file.place)
    if now != was:
        raise ValueError(
            f"{pieces.file.place} was changed during the run: its ETag was {was.version}, is {now.version}; restore "
            "the original file"
        )
    return [(begin, part.result()) for (begin, _), part in zip(pieces.ranges, parts, strict=True)]


def stamp_of(file: DataFile | str) -> Stamp:
    """Stamp of a file, which another content changes. Raises ValueError if the file is gone."""
    try:
        return stores.stamp_of(str(file))
    except OSError as error:
        raise ValueError(
            f"{file} existed when the run began, and is gone ({error}); put it back, and resume"
        ) from error
