"""python -m pipeline serve FOLDER: answer inference requests over HTTP with the servable in a folder."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.machine.limits import cpus
from pipeline.machine.loopback import warning_of
from pipeline.machine.signals import heed_interrupts
from pipeline.messages.sizes import format_size
from pipeline.serving.arguments import add_bad_values, run_command, size_argument
from pipeline.workflow import load

if TYPE_CHECKING:
    from pipeline.serving.served_model import ServedModel

Number = TypeVar("Number", int, float)
MIN_ANSWERING = 2
"""While one thread waits for pages, another one computes."""
MAX_BODY_BYTES = (1 << 31) - 1
"""Maximum of --max-bytes: offsets of texts and lists have 32 bits."""
SWITCH_SECONDS = 0.0005
"""Time for which a thread may keep Python's lock. With the usual 5 ms the event loop waits that long for a thread that
reads tensors, which is half of the time that a request may take."""


def main(argv: Sequence[str] | None = None, opener: Callable[[Path, int], ServedModel] | None = None) -> int:
    """Run the command. Exit code 0 if a signal ended it and all that had come was answered, 2 if there is nothing to
    serve or nowhere to listen, 130 if it was interrupted before. `opener`: opens a servable, given its folder and the
    bytes of its page cache; by default as the arguments say."""
    args = serve_arguments().parse_args(argv)
    heed_interrupts()
    return run_command(lambda: serve_command(args, opener), "before anything was served")


def serve_command(args: argparse.Namespace, opener: Callable[[Path, int], ServedModel] | None) -> str:
    """Serve as the arguments say until a signal ends it. Returns the text to print, which is empty. Raises what
    `run_command` reports."""
    # These imports take seconds, and --help needs none of them.
    from pipeline.serving.http.answer import probe
    from pipeline.serving.served_model import open_served

    try:
        from pipeline.serving.http.admission import Admission
        from pipeline.serving.http.current import Current
        from pipeline.serving.http.server import HttpServer, bind, url_of
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; the server needs more packages: pip install 'pipeline[serve]'") from error

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


def serve_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline serve", description=__doc__)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a servable, or a folder whose file `current` names one"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s: this machine alone)")
    parser.add_argument(
        "--port", type=_between(int, 0, 65_535, "0 to 65535"), default=8000, help="port, 0 for a free one (%(default)s)"
    )
    parser.add_argument("--memory", type=size_argument, default="512 MiB", help="cache of pages of rows (%(default)s)")
    parser.add_argument(
        "--max-requests", type=_between(int, 1, math.inf, "a number above 0"), default=16, metavar="N",
        help="requests in flight; further ones get 503 and may be repeated, which bounds how long a request waits "
        "(%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=_body_size, default="64 MiB", metavar="SIZE",
        help="bytes of bodies in flight, and the maximum of one; JSON takes ten times as much memory (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", type=_between(float, 1e-3, 86_400, "seconds, from 0.001 to a day"), default=5.0,
        metavar="SECONDS", help="time from the end of a request's body to the reading of its rows, and the longest "
        "pause in a body; a request may ask for less (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("onnx", "torch"),
        help="what runs the dense part (default: ONNX Runtime if it is installed and the servable has a model.onnx)",
    )  # fmt: skip
    add_bad_values(parser)
    parser.add_argument(
        "--workflow", type=Path, help="the workflow's file: torch needs it if it defines the model class"
    )
    return parser


def _body_size(text: str) -> int:
    return _between(size_argument, 1, MAX_BODY_BYTES, f"1 B to {format_size(MAX_BODY_BYTES)}")(text)


def _between(kind: Callable[[str], Number], least: float, most: float, expected: str) -> Callable[[str], Number]:
    """Parser of a number of an argument between two bounds, in words `expected`."""

    def parse(text: str) -> Number:
        try:
            if least <= (found := kind(text)) <= most:
                return found
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")

    return parse


if __name__ == "__main__":
    sys.exit(main())
