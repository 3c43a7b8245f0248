"""pipeline watch RUN: a page that shows a run, of any process, while it goes and afterwards."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import watch_arguments
from pipeline.errors import error_text, refuse_remote
from pipeline.machine.loopback import warning_of
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.live.lines import LIVE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, until it is interrupted. Exit code 0 then, 2 if there is nothing to watch or nowhere to
    listen."""
    args = watch_arguments().parse_args(argv)
    try:
        heed_interrupts()
        check_watched(args.run)
        serve_page(args.run, args.host, args.port)
    except (ValueError, OSError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def check_watched(run_dir: Path) -> None:
    """Raises ValueError, with what to do, if a folder has nothing to watch."""
    refuse_remote("the run to watch", run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir}: there is no such folder; name the folder of a run, such as runs/quickstart")
    if not (run_dir / LIVE).is_file():
        what = "an older version trained it" if (run_dir / "commits").is_dir() else "it is no run, or has not begun"
        raise ValueError(
            f"{run_dir}: it has no {LIVE}, so {what}; `pipeline report {run_dir}` shows what other files tell"
        )


def serve_page(run_dir: Path, address: str, port: int) -> None:
    """Serve the page of a run, and print its link, until the process is interrupted. Raises ValueError if the port is
    taken, or the address is not one of this machine."""
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
    loop.start()
