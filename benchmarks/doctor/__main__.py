"""Faults in data that `pipeline doctor` finds: recall by kind and strength, precision, and its output on clean data.

    python -m benchmarks.doctor [KIND ...] [--data ../shared/data] [--seed 1]

Each fault of `faults` is planted, one at a time, in a copy of Frappe_x1 and of the sample of Criteo's logs, in 1, 0.1
and 0.01 of the rows that its docstring names. It counts as found if the doctor reports a fault of this kind and, for
kinds that concern columns, of the planted column. Reported faults that were not planted count against precision, in
these copies, in clean ones, and in controls: columns that a fault adds, without the fault.

Faults of kind second_epoch are found from a run, which is trained for this purpose, on Frappe alone (see
`epochs.LEARNED`). Its AUC after each epoch is printed, since at 0.1 and 0.01 it hardly drops.

The last line is JSON: recall at 100, 10 and 1 %, precision, and `clean_faults`, the number of faults that were
reported for clean copies and controls.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common import arguments, finish, machine
from benchmarks.doctor.epochs import train_run
from benchmarks.doctor.faults import FORMS, STRENGTHS, VARIANTS, make_clean, plant, variants_for
from benchmarks.doctor.judge import Diagnose, Verdict, judge, the_doctor
from benchmarks.doctor.sets import real, synthetic
from benchmarks.doctor.table import figures, print_kinds, print_missed, print_remarks
from pipeline.workflow import Workflow


class Bench:
    """One data set, and its clean copies in a folder, made on first use."""

    def __init__(self, name: str, data: Workflow, out: Path, diagnose: Diagnose, seed: int, quick: bool) -> None:
        self._name, self._data, self._out, self._diagnose, self._seed = name, data, out, diagnose, seed
        self._quick = quick
        self._clean: dict[str, Workflow] = {}

    def clean(self, form: str) -> Workflow:
        if form not in self._clean:
            self._clean[form] = make_clean(self._data, form, self._out / form, self._seed)
        return self._clean[form]

    def verdicts(self, kinds: Sequence[str]) -> Iterator[Verdict]:
        """Examine the clean copies into which these kinds of faults are planted, then the controls, then the faults."""
        chosen = [one for one in variants_for(self._data) if one[0] in kinds]
        for form in FORMS:
            if any(variant.form == form for _, _, variant in chosen):
                workflow = self.clean(form)
                findings = self._diagnose(workflow, self._run(workflow, form == "small"), _ignore)
                yield judge(f"{self._name}_{form}", None, findings)
        for kind, name, variant in chosen:
            strengths = STRENGTHS[:1] if self._quick and variant.form == "small" else STRENGTHS
            for strength in (*((0.0,) if variant.control else ()), *strengths):
                yield self._one(kind, name, variant.form, strength)

    def _one(self, kind: str, variant: str, form: str, strength: float) -> Verdict:
        out = self._out / "faulty"
        planted = plant(kind, variant, strength, self.clean(form), out, self._seed)
        findings = self._diagnose(planted.workflow, self._run(planted.workflow, form == "small"), _ignore)
        shutil.rmtree(out)
        if not strength:
            return judge(f"{self._name}_controls", None, findings)
        return judge(f"{self._name}_{form}", planted, findings)

    def _run(self, workflow: Workflow, trained: bool) -> Path | None:
        """Folder of a finished run of the workflow, if it is to be trained."""
        if not trained:
            return None
        run_dir = workflow.data.root / "run"
        aucs = train_run(workflow, run_dir)
        named = workflow.data.categories[-1].name
        print(f"{self._name}, last category {named}: AUC by epoch {' '.join(f'{auc:.4f}' for auc in aucs)}", flush=True)
        return run_dir


def _ignore(line: str) -> None:
    """Ignore a line of the doctor's progress."""


def examine(
    sets: Mapping[str, Workflow], kinds: Sequence[str], out: Path, diagnose: Diagnose, seed: int, quick: bool = False
) -> list[Verdict]:
    """Examine every copy of every data set; if `quick`, with runs of only the strongest faults."""
    benches = [Bench(name, data, out / name, diagnose, seed, quick) for name, data in sets.items()]
    return [one for bench in benches for one in bench.verdicts(kinds)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data"))
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--seed", type=int, default=1)


def main() -> None:
    args = arguments("doctor", __doc__ or "", options)
    if unknown := [kind for kind in args.kinds if kind not in VARIANTS]:
        raise SystemExit(f"no faults of kind {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
    print(machine())
    with tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-") as folder:
        sets = {"synthetic": synthetic(Path(folder) / "data")} if args.quick else real(args.data)
        verdicts = examine(sets, args.kinds or list(VARIANTS), Path(folder), the_doctor(), args.seed, args.quick)
    print_kinds(verdicts)
    print_missed(verdicts)
    print_remarks(verdicts)
    finish(args, figures(verdicts))


if __name__ == "__main__":
    main()
