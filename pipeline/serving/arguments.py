"""Arguments that several commands of this folder take."""

from __future__ import annotations

import argparse

from pipeline.messages.sizes import parse_size


def size_argument(text: str) -> int:
    """Number of bytes of a size such as "512 MiB". Raises ArgumentTypeError if it is none."""
    try:
        found = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    assert isinstance(found, int)
    return found
