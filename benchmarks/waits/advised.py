"""Advice that a run gives at its end, tried.

    python -m benchmarks.waits.advised [--repeats 5]

First a run whose disk is slow (case "disk_reads" of `slow.py`), and the same with the setting that it advises. Then,
where a run says that nothing would help, as many pairs of it and of the same with twice the memory for rows.

Expected: (measured gain - 1) between 0.7 and 1.4 of (predicted gain - 1); twice the memory gains less than 3 %.

The last line is JSON: `predicted`, `measured`, `measured_vs_predicted` of the gains less 1; `gain_of_nothing`, the
median ratio of speeds with twice the memory.
"""

from __future__ import annotations

import re
import statistics
from argparse import Namespace

from benchmarks.common import arguments, finish, machine
from benchmarks.waits.__main__ import run_case
from pipeline.monitor.live.lines import Ended, LiveLine, Said

ADVICE = re.compile(r"(\S+) (\S+ ?\S*) instead of .*: predicted ([0-9.]+) x")
TWICE = ("storage.device=28 MiB", "storage.host=24 MiB")


def seconds_of(lines: list[LiveLine]) -> float:
    return next(line.seconds for line in lines if isinstance(line, Ended))


def advice_of(lines: list[LiveLine]) -> str:
    """The line that follows the end of a run; empty if there is none."""
    end = next(n for n, line in enumerate(lines) if isinstance(line, Ended))
    return next((line.text for line in lines[end:] if isinstance(line, Said)), "")


def slow_disk(args: Namespace) -> tuple[float, float]:
    """Predicted and measured gain of the advice for a slow disk."""
    before = run_case("disk_reads", args.data, args.quick)
    text = advice_of(before)
    found = ADVICE.fullmatch(text)
    print(f"slow disk: {seconds_of(before):.1f} s; {text}", flush=True)
    if not found:
        return 1.0, 1.0
    after = run_case("disk_reads", args.data, args.quick, [f"{found[1]}={found[2]}"])
    print(f"  with it {seconds_of(after):.1f} s", flush=True)
    return float(found[3]), seconds_of(before) / seconds_of(after)


def nothing_helps(args: Namespace) -> float:
    """Median ratio of the speeds of the quickstart with twice its memory and with its own."""
    ratios = []
    for pair in range(1 if args.quick else args.repeats):
        runs = {}
        for twice in (False, True) if pair % 2 else (True, False):
            runs[twice] = run_case("none", args.data, args.quick, list(TWICE) if twice else [], plain=True)
        ratios.append(seconds_of(runs[False]) / seconds_of(runs[True]))
        print(f"pair {pair}: {ratios[-1]:.3f}; {advice_of(runs[False])}", flush=True)
    return statistics.median(ratios)


def main() -> None:
    args = arguments("waits.advised", __doc__ or "")
    print(machine(), flush=True)
    predicted, measured = slow_disk(args)
    realized = max(0.0, measured - 1) / (predicted - 1) if predicted > 1 else 0.0
    finish({
        "predicted": predicted, "measured": measured, "measured_vs_predicted": realized,
        "gain_of_nothing": nothing_helps(args),
    })  # fmt: skip


if __name__ == "__main__":
    main()
