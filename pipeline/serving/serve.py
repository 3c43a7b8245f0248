"""pipeline serve FOLDER: answer inference requests over HTTP with the servable in a folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arguments import serve_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.hosts import warning_of
from pipeline.machine.limits import cpus
from pipeline.machine.signals import run_command
from pipeline.workflow import load

if TYPE_CHECKING:
    from pipeline.serving.served_model import ServedModel

MIN_ANSWERING = 2
"""Minimum number of answering threads: while one waits for pages, another computes."""
SWITCH_SECONDS = 0.0005
"""Time for which a thread may hold the GIL, in seconds. With the default of 5 ms, the event loop would wait that long
for a thread that reads tensors: half the time budget of a request."""


def main(argv: Sequence[str] | None = None, opener: Callable[[Path, int], ServedModel] | None = None) -> int:
    """Run the command. Exit code 0 if a signal ended it and all received requests were answered, 2 if there is nothing
    to serve or the address is unavailable, 130 if it was interrupted before serving. `opener`: opens a servable, given
    its folder and the bytes of its page cache; by default, according to the arguments."""
    args = serve_arguments().parse_args(argv)
    return run_command(lambda: serve_command(args, opener), "before anything was served", "--memory", heeds=True)


def serve_command(args: argparse.Namespace, opener: Callable[[Path, int], ServedModel] | None) -> str:
    """Serve according to the arguments until a signal arrives. Returns the text to print, which is empty. Raises what
    `run_command` reports."""
    refuse_remote("the folder", args.folder, way="copy the servable that its `current` names here")
    # These imports take seconds, and --help needs none of them.
    from pipeline.serving.http.request import probe
    from pipeline.serving.served_model import open_served

    try:
        from pipeline.serving.http.admission import Admission
        from pipeline.serving.http.current import Current
        from pipeline.serving.http.server import HttpServer, bind, url_of
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; the server needs more packages: pip install 'ctr-pipeline[serve]'") from error

    given = load(args.workflow) if args.workflow else None
    opener = opener or (lambda folder, memory: open_served(folder, memory, given, args.backend, args.bad_values))
    with (
        bind(args.host, args.port) as bound,
        closing(Current(args.folder, lambda folder: opener(folder, args.memory), probe)) as current,
    ):
        if warning := warning_of(f"--host {args.host}", args.host, "may ask for scores"):
            print(warning, file=sys.stderr, flush=True)

        def say_ready() -> None:
            served = current.served
            print(f"serving {served.name} ({served.version}) on {url_of(bound)}", flush=True)

        sys.setswitchinterval(SWITCH_SECONDS)
        admission, threads = Admission(args.max_requests, args.max_bytes), max(MIN_ANSWERING, cpus())
        HttpServer(current, admission, args.deadline, threads, say_ready).run_until_stopped(bound)
    return ""
