"""All-to-all between workers of one machine, through shared memory.

A worker copies the data to send into a buffer and sends each other worker a note of a few bytes over a Unix socket. The
note gives the position of that worker's part, and the worker copies it out.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pipeline.records import Rank

U8 = NDArray[np.uint8]
PEER = struct.Struct("3i")
"""PID, user ID and group ID at the other end of a socket."""


class Note(NamedTuple):
    """Message to another worker at the start of a call."""

    buffer: int
    """Number of the sender's buffer that contains the part. If the buffer is new or has grown, its file is sent too."""
    size: int
    at: int
    """Offset of the part in the buffer, in bytes."""
    done: int
    """Last call up to which the sender has copied out everything."""


NOTE = struct.Struct("4q")


@dataclass(slots=True)
class Buffer:
    """Memory that this worker writes and the other workers read."""

    memory: U8
    call: int = 0
    """Last call that used the buffer."""


@dataclass(slots=True)
class Neighbour:
    """Another worker of this machine."""

    socket: socket.socket
    buffers: dict[int, U8] = field(default_factory=dict)
    notes: dict[int, Note] = field(default_factory=dict)
    """Notes received, by call, kept until their parts are copied."""
    heard: int = 0
    """Number of notes received."""
    done: int = 0

    def note(self, call: int) -> Note:
        """Wait for the note of a call. Raises OSError if the worker is gone or late."""
        while self.heard < call:
            content, files, _, _ = socket.recv_fds(self.socket, NOTE.size, 1)
            if len(content) < NOTE.size:
                raise ConnectionError("another worker of this machine is gone")
            note = Note(*NOTE.unpack(content))
            for file in files:
                self.buffers[note.buffer] = _map(file, note.size, mmap.PROT_READ)
                os.close(file)
            self.heard, self.done = self.heard + 1, note.done
            self.notes[self.heard] = note
        return self.notes.pop(call)


class Started:
    """A call in progress."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self.wait = arrived


class SharedMemory:
    """One worker's side of the exchange. Only one thread may use it."""

    def __init__(self, store: Any, rank: Rank, timeout_seconds: float) -> None:
        """Wait until all workers have joined. `store` must not be used for anything else. Raises RuntimeError or
        OSError if a worker does not join in time."""
        self._rank = rank
        self._others: dict[int, Neighbour] = {}
        self._buffers: list[Buffer] = []
        self._calls = 0
        self._open: set[int] = set()
        """Calls whose parts have not all been copied out."""
        # A packet socket preserves message boundaries and, like a stream socket, reports that the other end is gone.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.settimeout(timeout_seconds)
            # Linux chooses a free address.
            listening.bind("")
            listening.listen(rank.world)
            store.set(str(rank.number), listening.getsockname())
            for other in range(rank.number):
                meeting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                meeting.settimeout(timeout_seconds)
                self._others[other] = Neighbour(meeting)
                meeting.connect(store.get(str(other)))
                if not _is_of_this_user(meeting):
                    raise PermissionError(f"worker {other} on this machine does not run as user {os.geteuid()}")
                meeting.send(rank.number.to_bytes(4, "little"))
            while len(self._others) < rank.world - 1:
                meeting, _ = listening.accept()
                if not _is_of_this_user(meeting):
                    meeting.close()
                    continue
                meeting.settimeout(timeout_seconds)
                self._others[int.from_bytes(meeting.recv(4), "little")] = Neighbour(meeting)

    def alltoall_base(self, receive: Tensor, send: Tensor, receive_W: Sequence[int], send_W: Sequence[int]) -> Started:
        """Start a call (see `Group.all_to_all`), with the interface of gloo's method of this name."""
        self._calls += 1
        self._open.add(self._calls)
        sent, own = _parts(send, send_W), self._rank.number
        received = _parts(receive, receive_W)
        received[own][:] = sent[own]
        ends = np.cumsum([0 if w == own else len(part) for w, part in enumerate(sent)]).tolist()
        number, file = self._free_buffer(ends[-1])
        buffer, done = self._buffers[number], min(self._open) - 1
        for other, neighbour in self._others.items():
            end = ends[other]
            begin = end - len(sent[other])
            buffer.memory[begin:end] = sent[other]
            note = NOTE.pack(number, len(buffer.memory), begin, done)
            if file is None:
                neighbour.socket.send(note)
            else:
                socket.send_fds(neighbour.socket, [note], [file])
        if file is not None:
            os.close(file)
        return Started(partial(self._copy_out, self._calls, received))

    def _copy_out(self, call: int, received: Sequence[U8]) -> None:
        for other, neighbour in self._others.items():
            note, part = neighbour.note(call), received[other]
            part[:] = neighbour.buffers[note.buffer][note.at : note.at + len(part)]
        self._open.discard(call)

    def _free_buffer(self, num_bytes: int) -> tuple[int, int | None]:
        """Number of a buffer that no other worker still reads, and its file if they do not have it yet."""
        done = min((neighbour.done for neighbour in self._others.values()), default=self._calls)
        free = [n for n, buffer in enumerate(self._buffers) if buffer.call <= done]
        number = next((n for n in free if len(self._buffers[n].memory) >= num_bytes), None)
        file = None
        if number is None:
            file, size = os.memfd_create("pipeline"), num_bytes + num_bytes // 2 + mmap.PAGESIZE
            os.ftruncate(file, size)
            made = Buffer(_map(file, size, mmap.PROT_READ | mmap.PROT_WRITE))
            number = free[0] if free else len(self._buffers)
            self._buffers[number : number + 1] = [made]
        self._buffers[number].call = self._calls
        return number, file

    def __del__(self) -> None:
        for neighbour in self._others.values():
            neighbour.socket.close()


def _is_of_this_user(meeting: socket.socket) -> bool:
    """True if the process at the other end runs as this user, since any process on the machine can connect."""
    _, user, _ = PEER.unpack(meeting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(user == os.geteuid())


def _map(file: int, size: int, access: int) -> U8:
    return np.frombuffer(mmap.mmap(file, size, mmap.MAP_SHARED, access), np.uint8)


def _parts(tensor: Tensor, rows_W: Sequence[int]) -> list[U8]:
    """Each worker's part of a contiguous tensor, as bytes."""
    content = tensor.numpy().reshape(-1).view(np.uint8)
    row_bytes = content.size // max(1, len(tensor))
    cuts = np.cumsum([0, *rows_W]) * row_bytes
    return [content[begin:end] for begin, end in pairwise(cuts.tolist())]
