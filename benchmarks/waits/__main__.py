"""Runs that are slowed on purpose: does the run name the cause?

    python -m benchmarks.waits [--repeats 2] [--only CASE ...]

Each of ten cases delays one thing (see `slow.py`). Runs without and with the delay take turns. The planted seconds are
those by which the run took longer; the found seconds are those by which the waits for the planted cause grew. The case
"core" plants no wait: another process takes a core, so that training itself takes longer.

Expected: in every case the planted cause grows most, and by at least 0.8 of the planted seconds.

The last line is JSON: `least_found`, the lowest of those shares; `named`, the share of cases whose planted cause grew
most; `most_unattributed`, the largest share of a run's wall seconds without a cause.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import arguments, finish, machine
from benchmarks.waits.slow import CASES
from pipeline.monitor.live.lines import Ended, LiveLine, read_live

ROOT = Path(__file__).parents[2]
MODEL_OF = {"worker": "SlowOnSecond"}
WORKFLOW = """
from pathlib import Path
from benchmarks.waits.slow import DeepFM, SlowOnSecond
from pipeline.workflow import load
plain = load(Path({quickstart!r}))
synthetic = plain.data.synthetic.model_copy(
    update=dict(train_examples={examples}, validation_examples={validation}, test_examples={validation})
)
data = plain.data.model_copy(update=dict(root=Path({root!r}), synthetic=synthetic))
schedule = plain.schedule.model_copy(update=dict(block_batches=2))
storage = plain.storage.model_copy(update=dict(device=8 << 20, host=6 << 20))
model = plain.model.model_copy(update=dict(kind={model}))
workflow = plain.model_copy(
    update=dict(name="waits", data=data, schedule=schedule, storage=storage, model=model)
)
"""
WIDE = (
    WORKFLOW.partition("schedule = ")[0]
    + """
model = plain.model.model_copy(update=dict(args=dict(hidden=(400, 400, 400))))
workflow = plain.model_copy(update=dict(data=data, model=model))
"""
)
"""Quickstart with a model that accounts for most of the time."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES))


def ended(case: str, slowed: bool, data: Path, quick: bool) -> Ended:
    """Last line of live.jsonl of a run of a case, or of the same run without the delay."""
    settings = ["commit.every_blocks=6"] if case == "commit" else []
    several = ["--workers", "2"] if case == "worker" else []
    lines = run_case(case if slowed else "none", data, quick, settings, several)
    return next(line for line in lines if isinstance(line, Ended))


def run_case(
    case: str, data: Path, quick: bool, settings: Sequence[str] = (), several: Sequence[str] = (),
    text: str = WORKFLOW, examples: int = 400_000,
) -> list[LiveLine]:  # fmt: skip
    """Lines of a run of a case ("none": without a delay) of the workflow `text`."""
    folder = data / "waits"
    folder.mkdir(parents=True, exist_ok=True)
    run_dir, file = folder / "run", folder / "workflow_waits.py"
    shutil.rmtree(run_dir, ignore_errors=True)
    examples = 60_000 if quick else examples
    file.write_text(
        text.format(
            quickstart=str(ROOT / "workflows" / "quickstart.py"), root=str(folder / f"data_{examples}"),
            examples=examples, validation=20_000 if quick else 50_000,
            model=MODEL_OF.get(case, "DeepFM"),
        )
    )  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.waits.slow", case, str(file), "--run-dir", str(run_dir), *several]
    command += [part for setting in settings for part in ("--set", setting)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return list(read_live(run_dir))


def main() -> None:
    args = arguments("waits", "Slowed runs, and whether they name the cause.", options)
    print(machine(), flush=True)
    print(f"{'case':12} {'cause':14} {'plain s':>8} {'slow s':>8} {'found':>6}  grew most")
    least, named, unattributed = 1.0, 0, 0.0
    cases = args.only[:1] if args.quick else args.only
    for case in cases:
        cause, _ = CASES[case]
        founds: list[float] = []
        growths: dict[str, float] = {}
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(1 if args.quick else args.repeats):
            plain, slow = (ended(case, slowed, args.data, args.quick) for slowed in (False, True))
            for slowed, run in ((False, plain), (True, slow)):
                seconds[slowed].append(run.seconds)
                unattributed = max(unattributed, abs(run.waits.get("unattributed", 0.0)) / run.seconds)
            grown = {name: slow.waits.get(name, 0.0) - plain.waits.get(name, 0.0) for name in slow.waits}
            growths = {name: growths.get(name, 0.0) + value for name, value in grown.items()}
            founds.append(grown.get(cause, 0.0) / max(slow.seconds - plain.seconds, 1e-9))
        most = max(growths, key=lambda name: growths[name])
        found = statistics.median(founds)
        least, named = min(least, found), named + (most == cause)
        took = [statistics.median(seconds[slowed]) for slowed in (False, True)]
        print(f"{case:12} {cause:14} {took[0]:8.1f} {took[1]:8.1f} {found:6.2f}  {most}", flush=True)
        print(
            "  " + json.dumps({name: round(value, 2) for name, value in growths.items() if abs(value) > 0.05}),
            flush=True,
        )
    finish(args, {"least_found": max(0.0, least), "named": named / len(cases), "most_unattributed": unattributed})


if __name__ == "__main__":
    main()
