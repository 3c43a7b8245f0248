"""A proxy in front of a store's server that injects faults at chosen requests."""

import asyncio
import threading
from contextlib import contextmanager, suppress

PIECE = 1 << 16
UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """Forwards requests to a server. `fault(number, method, path)` is called for each request, numbered from 1, before
    it is forwarded; it returns None or one of "503", "cut" (the connection ends before the request is forwarded), "late
    cut" (only half of the response arrives) and "stall" (no byte of a response arrives)."""

    def __init__(self, server_port):
        self.fault, self.requests = lambda number, method, path: None, []
        self._server_port = server_port
        self._tasks = []
        """References that keep the tasks alive, since the event loop does not."""

    async def run(self, ready):
        """Serve until `stop` is called. `ready`: called when `port` is known."""
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready()
            await self._stopped.wait()

    def stop(self):
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self, reader, writer):
        self._tasks.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                while await self._exchange(reader, writer, from_server, to_server):
                    pass
            finally:
                to_server.close()
                writer.close()

    async def _exchange(self, reader, writer, from_server, to_server):
        """Forward one request and its response. Returns False if the connection ends."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.decode("latin-1").split(" ", 2)[:2]
        self.requests.append((method, path))
        fault = self.fault(len(self.requests), method, path)
        if fault == "cut":
            return False
        if fault == "stall":
            await reader.read()
            return False
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")]
        if len(lines) < len(head.split(b"\r\n")):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(_length(head))
        if fault == "503":
            writer.write(UNAVAILABLE)
            await writer.drain()
            return False
        to_server.write(b"\r\n".join(lines) + body)
        answer = await from_server.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if b"transfer-encoding: chunked" in answer.lower():
            size = None
            while size != 0 and method != "HEAD":
                line = await from_server.readuntil(b"\r\n")
                size = int(line, 16)
                writer.write(line + await from_server.readexactly(size + 2))
            await writer.drain()
            return True
        left = 0 if method == "HEAD" or answer.split(b" ", 2)[1] in (b"204", b"304") else _length(answer)
        stop = left // 2 if fault == "late cut" else -1
        while left > 0:
            piece = await from_server.read(min(PIECE, left))
            left -= len(piece)
            if not piece or left <= stop:
                return False
            writer.write(piece)
            await writer.drain()
        return fault != "late cut"


def _length(head):
    found = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(found[0].split(b":")[1]) if found else 0


@contextmanager
def proxying(server_port):
    """Run a proxy in a thread of this process."""
    proxy, ready = Proxy(server_port), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.run(ready.set)))
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
