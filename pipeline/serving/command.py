"""Messages and exit codes that the commands of this folder share."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pipeline.errors import PipelineError, error_text
from pipeline.messages.sizes import parse_size


def bytes_of_memory(memory: str | int) -> int:
    """Number of bytes of a size such as "512 MiB". Raises ValueError if it is not a size."""
    num_bytes = parse_size(memory)
    if not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or num_bytes <= 0:
        raise ValueError(f'memory is {memory!r}; expected a size such as "512 MiB", or a number of bytes')
    return num_bytes


def run_command(command: Callable[[], str | None], kept: str = "", lower: str = "--memory") -> int:
    """Run a command and print the text that it returns, or its error. Returns the exit code: 0; 1 if it failed; 2 if an
    argument, data or the disk is wrong; 130 if it was interrupted, or returns None. `kept`: what an interrupt or a
    failure leaves. `lower`: what takes memory and can be set lower."""
    try:
        text = command()
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error, lower)}", file=sys.stderr)
        return 2
    except PipelineError as error:
        from pipeline.commits.reading import GivenUp

        # The same command would not find a commit that was given up.
        hint = f"\n{kept}" if kept and not isinstance(error, GivenUp) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        text = None
    if text is None:
        print(f"interrupted: {kept}", file=sys.stderr)
        return 130
    if text:
        print(text)
    return 0
