"""The server process: socket, signals, and a check for a new servable once a second."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import uvicorn

from pipeline.machine.signals import on_signal
from pipeline.serving.http.admission import Admission
from pipeline.serving.http.app import Api
from pipeline.serving.http.current import Current
from pipeline.serving.http.protocol import KEEP_ALIVE_SECONDS, BoundedHttp, connection_limits

SWAP_SECONDS = 1.0
"""Seconds between two checks of the file that names the servable."""
WAITING_CONNECTIONS = 2048
WRITE_SECONDS = 10
"""Seconds that clients have to receive their answers after the server starts to shut down."""


class HttpServer(uvicorn.Server):
    """A server on a bound socket. `stop` may be called from any thread and from signal handlers."""

    def __init__(
        self, current: Current, admission: Admission, deadline: float, threads: int, say_ready: Callable[[], None]
    ) -> None:
        """`deadline`: seconds (see `Api`). `threads`: number of answering threads. `say_ready`: called when the server
        accepts requests."""
        self._current = current
        self._say_ready = say_ready
        self._threads = ThreadPoolExecutor(threads, "predict")
        self._api = Api(current, admission, self._threads, deadline)
        super().__init__(
            uvicorn.Config(
                self._api.app(), loop="asyncio", http=BoundedHttp, ws="none", lifespan="off", log_config=None,
                log_level="error", access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
                backlog=connection_limits()[1],
                timeout_graceful_shutdown=math.ceil(deadline) + WRITE_SECONDS,
            )
        )  # fmt: skip

    def run_until_stopped(self, bound: socket.socket) -> None:
        """Answer requests until `stop`, SIGINT or SIGTERM, then finish those that have arrived."""
        self._api.bound = bound.getsockname()[0]
        with bound, self._threads, on_signal(self.stop):
            asyncio.run(self._run(bound))

    def stop(self, why: str) -> None:
        """Report not ready, accept no more connections, and end when every request is answered."""
        self._api.stopping = True
        self.should_exit = True

    async def _run(self, bound: socket.socket) -> None:
        looking = asyncio.create_task(self._look())
        try:
            await self.serve([bound])
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(SWAP_SECONDS)
            await asyncio.to_thread(self._current.look)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            # The loop accepts up to `backlog` connections at once; more may wait in the kernel.
            one.listen(WAITING_CONNECTIONS)
        self._say_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `on_signal`: uvicorn's handlers would terminate the process with the signal."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket; port 0 selects a free port. No client can connect until the server listens.

    Raises OSError, with the address, if it is in use or does not belong to this machine.
    """
    # With an explicit protocol, asyncio disables Nagle's algorithm. Otherwise the body of an answer, a separate write,
    # would wait 40 ms for the client's acknowledgement of the head.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(f"--host {host} --port {port}: {error.strerror}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
