"""Arguments that several commands of this folder take."""

from __future__ import annotations

import argparse
from typing import get_args

from pipeline.data.outside import BadValues
from pipeline.messages.sizes import parse_size


def size_argument(text: str) -> int:
    """Number of bytes of a size such as "512 MiB". Raises ArgumentTypeError if it is none."""
    try:
        found = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    assert isinstance(found, int)
    return found


def add_bad_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bad-values", choices=get_args(BadValues), default="clip",
        help="a row with a number outside the domain of its column (log1p of -1 or less, not finite) is scored with "
        "the nearest number inside, or gets null, or all are refused (%(default)s); they are counted",
    )  # fmt: skip
