"""Advice that a run gives at its end, tried.

    python -m benchmarks.waits.advised [--repeats 5]

Two runs that have too little memory, one whose disk is slow (case "disk_reads" of `slow.py`) and one whose disk is not,
and the same with the setting that each advises. Then, where a run says that nothing would help (quickstart with a model
that takes most of the time), as many pairs of it and of the same with twice the memory for rows.

Expected: (measured gain - 1) between 0.7 and 1.4 of (predicted gain - 1), where 1.3 or more is predicted; twice the
memory gains less than 3 %.

The last line is JSON: `realized_slow_disk`, `realized_moves`: the measured of the predicted gains, both less 1 (0 if
none was advised); `gain_of_nothing`, the median ratio of speeds with twice the memory, and `told`, the share of these
runs that said that more memory would not help.
"""

from __future__ import annotations

import re
import statistics
from argparse import Namespace

from benchmarks.common import arguments, finish, machine
from benchmarks.waits.__main__ import WIDE, run_case
from pipeline.monitor.live.lines import Ended, LiveLine, Said

ADVICE = re.compile(r"(\S+) (\S+ ?\S*) instead of .*: predicted ([0-9.]+) x")
EXAMPLES = 2_000_000
"""So many that a run takes long enough to be told what would help."""
TWICE = ("storage.device=28 MiB", "storage.host=24 MiB")


def seconds_of(lines: list[LiveLine]) -> float:
    return next(line.seconds for line in lines if isinstance(line, Ended))


def advice_of(lines: list[LiveLine]) -> str:
    """The line that follows the end of a run; empty if there is none."""
    end = next(n for n, line in enumerate(lines) if isinstance(line, Ended))
    return next((line.text for line in lines[end:] if isinstance(line, Said)), "")


def realized(case: str, args: Namespace) -> float:
    """Measured share of the gain that a run predicts for the setting that it advises; 0 if it advises none."""
    before = run_case(case, args.data, args.quick, examples=EXAMPLES)
    text = advice_of(before)
    found = ADVICE.fullmatch(text)
    print(f"{case}: {seconds_of(before):.1f} s; {text}", flush=True)
    if not found:
        return 0.0
    after = run_case(case, args.data, args.quick, [f"{found[1]}={found[2]}"], examples=EXAMPLES)
    measured = seconds_of(before) / seconds_of(after)
    print(f"  with it {seconds_of(after):.1f} s, {measured:.2f} x", flush=True)
    return max(0.0, measured - 1) / (float(found[3]) - 1)


def nothing_helps(args: Namespace) -> tuple[float, float]:
    """Median ratio of the speeds with twice the memory and without, and the share of runs that said that it would not
    help."""
    ratios, told = [], []
    for pair in range(1 if args.quick else args.repeats):
        runs = {}
        for twice in (False, True) if pair % 2 else (True, False):
            settings = list(TWICE) if twice else []
            runs[twice] = run_case("none", args.data, args.quick, settings, text=WIDE, examples=EXAMPLES // 2)
        ratios.append(seconds_of(runs[False]) / seconds_of(runs[True]))
        told.append(advice_of(runs[False]) == "more memory would not help")
        print(f"pair {pair}: {ratios[-1]:.3f}; {advice_of(runs[False])}", flush=True)
    return statistics.median(ratios), sum(told) / len(told)


def main() -> None:
    args = arguments("waits.advised", __doc__ or "")
    print(machine(), flush=True)
    shares = {"realized_slow_disk": realized("disk_reads", args), "realized_moves": realized("none", args)}
    gain, told = nothing_helps(args)
    finish(shares | {"gain_of_nothing": gain, "told": told})


if __name__ == "__main__":
    main()
