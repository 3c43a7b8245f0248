"""Tables of what the doctor found."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.doctor.faults import STRENGTHS, VARIANTS
from benchmarks.doctor.judge import Verdict, precision, recall


def print_kinds(verdicts: Sequence[Verdict]) -> None:
    """Print the recall of each kind, by strength."""
    print(f"\n{'found':18}" + "".join(f"{strength:>9.0%}" for strength in STRENGTHS))
    for kind in (*VARIANTS, None):
        shares = [recall(verdicts, strength, kind) for strength in STRENGTHS]
        print(f"{kind or 'all':18}" + "".join(f"{'-' if one is None else f'{one:.0%}':>9}" for one in shares))


def print_missed(verdicts: Sequence[Verdict]) -> None:
    """Print what was not found, and all faults that were reported and not planted."""
    print("\nnot found:")
    for one in verdicts:
        if one.planted and not one.found:
            planted = one.planted
            rows = f"{planted.affected:,} of {planted.of:,}"
            print(f"  {one.data:20} {planted.kind} {planted.variant} {planted.strength:.0%} ({rows})")
    print("\nreported, and not planted:")
    for one in verdicts:
        where = f"{one.planted.kind} {one.planted.variant} {one.planted.strength:.0%}" if one.planted else "no fault"
        for finding in one.wrong:
            print(f"  {one.data:20} {where}: {finding.kind}: {finding.text}")


def print_remarks(verdicts: Sequence[Verdict]) -> None:
    """Print the remarks on copies without a fault."""
    print("\nremarks on copies without a fault:")
    for one in verdicts:
        for remark in [] if one.planted else one.remarks:
            print(f"  {one.data:20} {remark.kind}: {remark.text}")


def figures(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Figures of the last line: recall by strength, precision, and the number of faults found in copies without one."""
    recalls = {f"recall_{strength * 100:.0f}": recall(verdicts, strength) for strength in STRENGTHS}
    clean = sum(len(one.wrong) for one in verdicts if not one.planted)
    found = {name: value for name, value in recalls.items() if value is not None}
    return found | {"precision": precision(verdicts), "clean_faults": float(clean)}
