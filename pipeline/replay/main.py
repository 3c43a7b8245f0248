"""pipeline replay WORKFLOW|RUN: find the hits of each tier from the keys of the data alone, without training.

Given a workflow, a run is simulated. Given a run directory, the run is replayed exactly, from its record."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from pipeline.arguments import replay_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command
from pipeline.machine.signals import heed_interrupts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if an argument, the data or the record is wrong, 130 after an
    interrupt."""
    args = replay_arguments().parse_args(argv)
    return run_command(lambda: replay_command(args), failed=2)


def replay_command(args: Namespace) -> str:
    """Simulate or replay, according to the arguments. Returns the table of hits, and a line with the same as JSON."""
    refuse_remote("the workflow or run", args.target)
    share, pairs = share_of_keys(args.sample), policy_pairs(args.policies)
    # These imports take seconds; mistakes in the arguments are reported before them.
    from pipeline.replay.command import replay

    heed_interrupts()
    found = replay(args, share, pairs, say)
    return f"{found.table()}\n{json.dumps(found.as_json())}"


def say(line: str) -> None:
    """Print a line to stderr: stdout is for the table and one line of JSON."""
    print(line, file=sys.stderr, flush=True)


def share_of_keys(text: str) -> float:
    """Parse a share such as "1/16". Raises ValueError if the text is not a share."""
    try:
        share = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"--sample {text}: expected a share of the keys above 0 and up to 1, such as 1/16")
    return share


def policy_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Parse pairs of policies of device and host. Raises ValueError, with the known names, if one is unknown."""
    from pipeline.storage.policies import POLICIES

    if list(texts) == ["all"]:
        return list(product(POLICIES, POLICIES))
    pairs = []
    for text in texts:
        device, _, host = text.partition(":")
        if device not in POLICIES or host not in POLICIES:
            raise ValueError(
                f"--policies {text}: expected DEVICE:HOST, such as lru:lfu, each one of {', '.join(POLICIES)}; or all"
            )
        pairs.append((device, host))
    return pairs
