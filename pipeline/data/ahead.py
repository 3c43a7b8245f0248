"""Prefetch of row groups from object stores, so that the latency of the store overlaps with training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.files import stores
from pipeline.files.find import DataFile
from pipeline.files.stores import PIECE, Stamp, StoredFile

REQUESTS = 8
"""Maximum number of concurrent requests. At 1 MB and 20 ms each, they use a bandwidth of 400 MB/s."""
HOLE = 1 << 18
"""Maximum gap in bytes between two column chunks that are fetched together: beyond it, a separate request is
cheaper."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Used column chunks of a row group; chunks that are close together are fetched with one request."""

    file: StoredFile
    ranges: tuple[tuple[int, int], ...]
    """First byte of each piece, and its end (exclusive)."""

    @property
    def num_bytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


def bytes_in_stores(groups: Sequence[tuple[Pieces, int]], window: int) -> tuple[int, int]:
    """Return the bytes of the largest row group, as fetched, plus all footers; and the same plus the bytes of a window
    of `window` examples. `groups`: row groups in stores, each with its number of rows."""
    largest = max((pieces.num_bytes for pieces, _ in groups), default=0)
    least = largest + sum(len(file.footer) for file in {pieces.file for pieces, _ in groups})
    of_example = max((pieces.num_bytes / num_rows for pieces, num_rows in groups), default=0.0)
    return least, int(window * of_example) + least


def ranges_of(chunks: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of the pieces that contain these column chunks; no chunk is split."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(set(chunks)):
        if found and begin - found[-1][1] <= HOLE and end - found[-1][0] <= PIECE:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return tuple(found)


class ReadAhead:
    """Prefetcher of row groups, in the order in which they will be needed. Errors are raised when a row group is
    taken."""

    def __init__(self) -> None:
        self.most_bytes = 0
        """Maximum number of bytes to fetch ahead and keep."""
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        """Threads that request pieces, and one that then checks whether the file has changed."""
        self._begun: dict[Pieces, tuple[Future[list[tuple[int, bytes]]], list[Future[bytes]]]] = {}

    def take(self, wanted: Pieces, coming: Iterable[Pieces]) -> list[tuple[int, bytes]]:
        """Return the offset and bytes of each piece of a row group. Also starts to fetch the next ones in `coming`, up
        to `most_bytes`, and drops other pending fetches. Raises OSError if the row group cannot be read, ValueError if
        its file has changed."""
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
        """Wait for pending fetches. May be called twice."""
        for pool in self._pools or ():
            pool.shutdown(cancel_futures=True)
        self._pools, self._begun = None, {}


def _whole(pieces: Pieces, parts: list[Future[bytes]]) -> list[tuple[int, bytes]]:
    for part in parts:
        # Not `wait`: it never sees the cancellation of a future that had not started when its pool was shut down.
        part.exception()
    # Checked after the last byte arrives: a file replaced during the read would yield pieces of both versions.
    was, now = pieces.file.stamp, stamp_of(pieces.file.place)
    if now != was:
        raise ValueError(
            f"{pieces.file.place} was changed during the run: its ETag was {was.version}, is {now.version}; restore "
            "the original file"
        )
    return [(begin, part.result()) for (begin, _), part in zip(pieces.ranges, parts, strict=True)]


def stamp_of(file: DataFile | str) -> Stamp:
    """Stamp of a file; it changes with the content. Raises ValueError if the file is gone."""
    try:
        return stores.stamp_of(str(file))
    except OSError as error:
        raise ValueError(
            f"{file} existed when the run began, and is gone ({error}); put it back, and resume"
        ) from error
