"""python -m pipeline serve FOLDER: answer inference requests over HTTP with the servable in a folder."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import error_text
from pipeline.machine.limits import cpus
from pipeline.machine.loopback import warning_of
from pipeline.machine.signals import heed_interrupts
from pipeline.messages.sizes import format_size
from pipeline.serving.arguments import add_bad_values, size_argument
from pipeline.workflow import load

if TYPE_CHECKING:
    from pipeline.serving.served_model import ServedModel

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
    try:
        heed_interrupts()
        return serve_command(args, opener or opener_of(args))
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error, '--memory')}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: {error}; the server needs more packages: pip install 'pipeline[serve]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before anything was served", file=sys.stderr)
        return 130


def serve_command(args: argparse.Namespace, opener: Callable[[Path, int], ServedModel]) -> int:
    """Serve as the arguments say, and return the exit code. Raises what `main` reports."""
    # These imports take seconds, and --help needs none of them.
    from pipeline.serving.http.answer import probe
    from pipeline.serving.http.current import Current
    from pipeline.serving.http.server import HttpServer, Limits, bind, url_of

    limits = Limits(args.max_requests, args.max_bytes, args.deadline, max(MIN_ANSWERING, cpus()))
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
        HttpServer(current, limits, say_ready).run_until_stopped(bound)
    return 0


def opener_of(args: argparse.Namespace) -> Callable[[Path, int], ServedModel]:
    """Return the function that opens servables as the arguments say."""
    from pipeline.serving.served_model import open_served

    given = load(args.workflow) if args.workflow else None
    return lambda folder, memory: open_served(folder, memory, given, args.backend, args.bad_values)


def serve_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline serve", description=__doc__)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a servable, or a folder whose file `current` names one"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s: this machine alone)")
    parser.add_argument("--port", type=_port, default=8000, help="port, 0 for a free one (%(default)s)")
    parser.add_argument("--memory", type=size_argument, default="512 MiB", help="cache of pages of rows (%(default)s)")
    parser.add_argument(
        "--max-requests", type=_positive, default=16, metavar="N",
        help="requests that wait or are answered; further ones get 503 and may come again, so this bounds how long one "
        "waits (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=_body_size, default="64 MiB", metavar="SIZE",
        help="bytes of bodies in flight, and the maximum of one; JSON takes ten times as much memory (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", type=_seconds, default=5.0, metavar="SECONDS",
        help="a request that has read no row this long after its body came is dropped, and a body that pauses for so "
        "long; it may ask for less (%(default)s)",
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
    found = size_argument(text)
    if not 0 < found <= MAX_BODY_BYTES:
        raise argparse.ArgumentTypeError(f"expected 1 B to {format_size(MAX_BODY_BYTES)}, got {text}")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, got {text}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < 86_400:
        raise argparse.ArgumentTypeError(f"expected seconds, above 0 and below a day, got {text}")
    return found


if __name__ == "__main__":
    sys.exit(main())
