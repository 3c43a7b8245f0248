"""pipeline watch RUN: serve a page that shows a run of any process, during and after training."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.arguments import watch_arguments
from pipeline.machine.command import run_command
from pipeline.machine.hosts import warning_of
from pipeline.monitor.command import check_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until it is interrupted. Exit code 0 then, 2 if there is no run or the port is taken."""
    args = watch_arguments().parse_args(argv)
    return run_command(lambda: serve_page(args.run, args.host, args.port), heeds=True)


def serve_page(run_dir: Path, address: str, port: int) -> str:
    """Print a link to the page of a run and serve it until the process is interrupted. Raises ValueError if the folder
    is not a run, the port is taken, or the address does not belong to this machine."""
    check_run(run_dir)
    # These imports take a second, and neither --help nor an error needs them.
    from tornado.httpserver import HTTPServer
    from tornado.ioloop import IOLoop

    from pipeline.monitor.page.application import page_application
    from pipeline.monitor.page.guard import guard

    try:
        bound = socket.create_server((address, port))
    except OSError as error:
        raise ValueError(
            f"cannot listen at port {port} of {address}: {error.strerror or error}; name another one with --port, or "
            "an address of this machine with --host"
        ) from error
    if warning := warning_of(f"--host {address}", address, "sees the run and its files' names"):
        print(warning, file=sys.stderr, flush=True)
    bound.setblocking(False)
    host, loop = socket.gethostname() if address == "0.0.0.0" else address, IOLoop.current()
    application = page_application(run_dir)
    application.initialize(loop)
    application.start()
    server = HTTPServer(application)
    guard(server, bound.getsockname()[0])
    server.add_socket(bound)
    print(f"watching {run_dir} at http://{host}:{bound.getsockname()[1]}/ (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        loop.start()
    return ""
