"""Write RESULTS.md, and tables in the README and docs/testing.md, from the figures in `results/*.json`:

    python -m benchmarks.end_to_end --json benchmarks/results/end_to_end.json     # measures, replaces the figures
    python -m benchmarks.results                                                  # writes the page and the tables

A file has a part measured by a benchmark (`command`, `commit`, `date`, `machine`, `values`) and a part written by a
person: `notes`, and `rows` of a label, the name of a value, or a list of names, and an aim such as ">= 0.8" (or "").
Figures that miss their aim are bold.
"""

from __future__ import annotations

import json
from operator import ge, le
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, FILES = ROOT / "benchmarks" / "RESULTS.md", ROOT / "benchmarks" / "results"
README, TESTING = ROOT / "README.md", ROOT / "docs" / "testing.md"
END = "<!-- end -->\n"
GROUPS = {
    "What the README says": (
        "end_to_end", "end_to_end_advantages", "accuracy", "workers", "crash", "worker_kills", "tested",
    ),
    "Speed": ("end_to_end_tiers", "kernels", "plan", "row_path"),
    "Storage and caches": ("disk", "narrow_rows_runs", "policies", "policies_runs", "scale", "year_size"),
    "Accuracy": ("bad_days", "first_model", "kstep", "large_batch", "narrow_rows", "nightly", "sequences", "tune"),
    "Preparing data and using a model": ("prepare", "serve"),
    "What a run predicts and says": ("observer",),
}  # fmt: skip
"""Files of results by section of the page, in order."""
HEAD = """# Benchmark results

Written by `python -m benchmarks.results` from `benchmarks/results/*.json`; do not edit. Compare figures of one run
with each other: absolute ones come from shared virtual machines and vary by a factor of two. **Bold: the aim is
missed.** Several figures in a cell are in the order of their label. The number in the last column is that of the
[run](#runs); the benchmark of its commit repeats it.

**No GPU was measured.** `make bench-gpu` is written and waits for one. CUDA kernels were compiled for compute
capabilities 8.0 and 9.0 (none spills, at most 64 registers a thread) and run in a simulator, which says nothing of
speed.
"""
COMPARED = (
    ("**this, all rows in memory**", "a64", "a400"),
    ("**this, 90 % of the rows on disk**, page cache holds the log", "b64 page cache", None),
    ("**this, 90 % of the rows on disk**, no page cache", "b64 direct", None),
    ("torch `nn.Embedding(sparse=True)` + `SparseAdam`, tuned", "c64 tuned", "c400 tuned"),
    ("FBGEMM, row-wise Adagrad, tuned", "e64 tuned", "e400 tuned"),
    ("the dense model alone: an upper bound", "d64", "d400"),
)
"""Rows of the README's table: label, and the values of `end_to_end` for an MLP of 64 and of 400-400-400."""


def read() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted(FILES.glob("*.json"))}


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}"


def missed(value: float, aim: str) -> bool:
    """True if a value misses its aim, such as ">= 0.8" or "<= 10"; False if there is no aim."""
    sign, _, bound = aim.partition(" ")
    return bool(aim) and not {">=": ge, "<=": le}[sign](value, float(bound))


def cell(value: float | None, aim: str) -> str:
    """Text of a value in the table, bold if it misses its aim."""
    if value is None:
        return "not in this run"
    return f"**{figure(value)}**" if missed(value, aim) else figure(value)


def page(results: dict[str, dict[str, Any]]) -> str:
    lines, runs = [HEAD], ["## Runs", ""]
    for group, names in GROUPS.items():
        lines += [f"## {group}", "", "| | measured | aim | run |", "| --- | --- | --- | --- |"]
        for one in (results[name] for name in names):
            number = len(runs) - 1
            for label, shown, aim in one["rows"]:
                values = [one["values"].get(name) for name in (shown if isinstance(shown, list) else [shown])]
                lines.append(f"| {label} | {'; '.join(cell(value, aim) for value in values)} | {aim} | {number} |")
            about = ", ".join([f"`{one['command']}`", one["date"], f"commit {one['commit']}", one["machine"]])
            runs.append(f"{number}. {about}. {one['notes']}".rstrip())
        lines.append("")
    return "\n".join(lines + runs) + "\n"


def compared(results: dict[str, dict[str, Any]]) -> str:
    """The README's table of the figures of `end_to_end`, with ratios."""
    one, fast = results["end_to_end"], results["end_to_end_advantages"]
    of = one["values"]
    lines = ["| examples/s | MLP 64 | MLP 400-400-400 |", "| --- | --- | --- |"]
    lines += [f"| {label} | {' | '.join(figure(of.get(name)) for name in names)} |" for label, *names in COMPARED]
    ratios = (
        f"Relative to itself in memory, with 90 % of the rows on disk: {of['b64 page cache'] / of['a64']:.2f} and "
        f"{of['b64 direct'] / of['a64']:.2f}. In memory, relative to FBGEMM: {of['a64'] / of['e64 tuned']:.2f} and "
        f"{of['a400'] / of['e400 tuned']:.2f}; with compiled networks "
        f"{fast['values']['a_vs_best_mlp64_compiled']:.2f}, in bfloat16 (wide) "
        f"{fast['values']['a_vs_best_mlp400_bf16']:.2f} ({fast['machine'].partition(', ')[0]}, {fast['date']})."
    )
    return "\n".join([*lines, "", f"{one['machine']}; {one['date']}, commit {one['commit']}.", ratios, ""])


def tested(results: dict[str, dict[str, Any]]) -> str:
    """The table of what the tests do, from the figures of `tested` and `crash`."""
    counts, crash = results["tested"]["values"], results["crash"]["values"]
    rows = (
        ("test functions, and forms that their parameters give", f"{counts['functions']:,.0f}; {counts['forms']:,.0f}"),
        ("forced orders of stages: bad ones are noticed, allowed ones change no bit", figure(counts["orders"])),
        ("states of a run that died at any durable system call, all resumed", figure(crash["points"] + crash["again"])),
        ("flipped bits in the files of a run, all found", figure(crash["flips"])),
        ("properties that Hypothesis tries to refute", figure(counts["properties"])),
    )
    return "\n".join(
        ["| tested by | number |", "| --- | --- |", *(f"| {what} | {number} |" for what, number in rows), ""]
    )


def with_table(text: str, name: str, table: str) -> str:
    """Return the text with the table between the lines `<!-- name: ... -->` and END replaced."""
    begin = f"<!-- {name}: written by python -m benchmarks.results -->\n"
    before, found, rest = text.partition(begin)
    assert found, f"{begin} is missing"
    return before + begin + table + END + rest.partition(END)[2]


def pages(results: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """All files to write, with their texts."""
    readme = with_table(README.read_text(), "speed", compared(results))
    return {
        RESULTS: page(results),
        README: with_table(readme, "tested", tested(results)),
        TESTING: with_table(TESTING.read_text(), "tested", tested(results)),
    }


def main() -> None:
    for file, text in pages(read()).items():
        file.write_text(text)


if __name__ == "__main__":
    main()
