"""The report at the end of a run: the result in a few lines and, if asked for, tables of time per stage and rows per
tier."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.messages.terminal import drawn_on, visible

GIB = 1 << 30
WORST_NE = 2.0
"""Normalized entropy above which there is a warning. Always predicting the mean label has 1; a model may begin with a
little more."""
OF_LABEL = ("auc", "logloss", "ne", "calibration", "gauc", "gauc_share", "recall", "ndcg")
"""Metrics that each label has."""
SHOWN_KINDS = ("keys", "rows", "gradients", "dense", "merge", "buffers", "agreement")
"""Kinds of traffic between workers, in the order of the table."""


def print_report(result: Mapping[str, Any], console: Console | None = None, tables: bool = False) -> None:
    """Print the result in a few lines on `console` (default: stdout). `tables`: before them tables of stages, tiers and
    of what workers sent, and a line on the disk.

    `result` holds name, auc, logloss, examples, seconds, examples_per_second, stages, cpu_seconds, hidden, ready,
    tiers (see `TierTotals.report`), disk (see `DiskTotals.report`), workers (traffic that each sent to others, by kind;
    empty for a single worker) and fingerprint. None or nan is shown as "-".
    """
    out = console if console is not None else _stdout()
    if tables:
        stages = _table(STAGE_HEAD, stage_rows(result))
        stages.caption = (
            f"{number(result['ready'], '.1f')} blocks were ready ahead of training, on average\n"
            "during training: share of a stage's time in which some block trained as well, so that it cost nothing"
        )
        out.print(stages)
        out.print(_table(TIER_HEAD, tier_rows(result["tiers"])))
        if result["workers"]:
            out.print(worker_table(result["workers"]))
        out.print(disk_line(result["disk"]), markup=False, highlight=False, soft_wrap=True)
    print(visible(summary(result)), file=out.file)


STAGE_HEAD = ("stage", "seconds", "CPU seconds", "during training")
TIER_HEAD = ("tier", "capacity", "hits", "hit rate", "rows in", "rows out", "GiB moved")


def stage_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Texts of `STAGE_HEAD` for each stage: wall and CPU seconds, and the share hidden behind training."""
    return [
        (
            stage, number(seconds, ",.1f"), number(result["cpu_seconds"].get(stage), ",.1f"),
            number(result["hidden"].get(stage), ".0%"),
        )
        for stage, seconds in result["stages"].items()
    ]  # fmt: skip


def tier_rows(tiers: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Texts of `TIER_HEAD` for each tier."""
    return [
        (
            name, _capacity(tier), number(tier["hits"], ",.0f"), number(tier["hit_rate"], ".1%"),
            number(tier["rows_in"], ",.0f"), number(tier["rows_out"], ",.0f"),
            number(tier["bytes"] / GIB if "bytes" in tier else None, ",.2f"),
        )
        for name, tier in tiers.items()
    ]  # fmt: skip


def worker_table(workers: Sequence[Mapping[str, Mapping[str, float]]]) -> Table:
    """Table with a row per worker: KiB of each kind that it sent to others per step."""
    kinds = [kind for kind in SHOWN_KINDS if any(kind in sent for sent in workers)]
    rows = [
        (str(rank), *(number(sent.get(kind, {}).get("bytes_per_step", 0) / 1024, ",.1f") for kind in kinds))
        for rank, sent in enumerate(workers)
    ]
    table = _table(("worker", *kinds), rows)
    table.caption = "KiB sent to other workers a step, on average"
    return table


def disk_line(disk: Mapping[str, Any]) -> str:
    """One line on the writes to the log; `disk` as returned by `DiskTotals.report`."""
    parts = [
        f"{disk['commits']} commits in {number(disk['commit_seconds'], ',.1f')} s",
        f"{number(disk['written_bytes'] / GIB, ',.2f')} GiB written to the log",
        f"{number(disk['rewritten_bytes'] / GIB, ',.2f')} GiB of it by merging sparse chunks",
        f"write amplification {number(disk['write_amplification'], '.2f')}",
    ]
    return ", ".join(parts)


def summary(result: Mapping[str, Any]) -> str:
    """Lines of the name and speed, of the metrics of the last evaluation (AUC, logloss and, if groups are used, AUC
    within groups; with several labels a line for each), and of the fingerprint."""
    last: Mapping[str, Any] = next((e for e in reversed(result["epochs"]) if e["split"] == result["split"]), {})
    split, (_, by_label) = result["split"] or "test", of_labels(last)
    main = ("auc", "logloss", "gauc")
    trained, seconds = number(result["examples"], ",.0f"), number(result["seconds"], ",.1f")
    speed = f"{number(result['examples_per_second'], ',.0f')} a second with evaluation and commits"
    head = f"{result['name']}: {trained} training examples in {seconds} s, {speed}"
    fingerprint = f"fingerprint {result['fingerprint'] or '-'}"
    if by_label:
        shown = {label: {name: of[name] for name in main if name in of} for label, of in by_label.items()}
        return "\n".join([head, f"{split}:", *label_lines(shown), fingerprint])
    shown_once = {name: result.get(name) for name in main if name != "gauc" or result.get(name) is not None}
    metrics = ", ".join(f"{name} {number(value, '.5f')}" for name, value in shown_once.items())
    return "\n".join([head, f"{split}: {metrics}", fingerprint])


def evaluated(metrics: Mapping[str, Any]) -> str:
    """A line with the metrics of one pass over a split (an entry of `History.epochs`), with several labels a line for
    each of them below it, and a warning line for each normalized entropy above `WORST_NE`."""
    how = ""
    if metrics["split"] == "train" and "examples" in metrics:
        how = (
            f" (progressive, in training mode: dropout and batch norm as in training; {metrics['examples']:,} examples)"
        )
    epoch = f"epoch {metrics['epoch']} " if "epoch" in metrics else ""
    common, by_label = of_labels(metrics)
    lines = [f"{epoch}{metrics['split']}{how}:{' ' if common else ''}{_shown(common)}"]
    lines += label_lines(by_label)
    ne = {label: of.get("ne", math.nan) for label, of in by_label.items()} if by_label else {"": common.get("ne", 0)}
    for label, value in ne.items():
        if value > WORST_NE:
            where = f"{metrics['split']}, {label}," if label else metrics["split"]
            lines.append(
                f"warning: ne of {where} is {value:.3g}: worse by that factor than always predicting "
                "the mean label; lower optimizer.dense.lr or optimizer.rows.lr, or check the labels"
            )
    return "\n".join(lines)


def of_labels(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Divide the metrics of a pass into those without a label and those of each label, whose name ends in it. With
    several labels, what the first one has twice is only with the label."""
    values = {name: value for name, value in metrics.items() if isinstance(value, float)}
    labels = list(dict.fromkeys(name.removeprefix("ne_") for name in values if name.startswith("ne_")))
    by_label = {
        label: {name: values[f"{name}_{label}"] for name in OF_LABEL if f"{name}_{label}" in values} for label in labels
    }
    named = {f"{name}_{label}" for label in labels for name in OF_LABEL}
    common = {n: value for n, value in values.items() if n not in named and not (labels and n in OF_LABEL)}
    return common, by_label


def label_lines(by_label: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each label, with its metrics in columns."""
    wide = max(map(len, by_label), default=0)
    return [f"  {label:<{wide}}  {_shown(metrics)}" for label, metrics in by_label.items()]


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value, '.5f')}{_constant(name, metrics)}" for name, value in metrics.items())


def _constant(name: str, metrics: Mapping[str, Any]) -> str:
    """Logloss of always predicting the mean label, behind a logloss; empty for other metrics."""
    ne = metrics.get("ne") if name == "logloss" else None
    return f" (always the mean: {metrics[name] / ne:.5f})" if ne and math.isfinite(ne) else ""


def _stdout() -> Console:
    """Console as wide as the terminal; for a file 100 columns, as wide as the tables, since rich would assume 80."""
    console = Console(file=drawn_on(sys.stdout))
    return console if console.is_terminal else Console(file=console.file, width=100)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _capacity(tier: Mapping[str, Any]) -> str:
    if tier.get("capacity_rows") is not None:
        return f"{number(tier['capacity_rows'], ',.0f')} rows"
    capacity = tier.get("capacity_bytes")
    return f"{number(None if capacity is None else capacity / GIB, ',.1f')} GiB"


def number(value: float | None, style: str) -> str:
    """The value in the format `style`; "-" for None or nan."""
    return "-" if value is None or math.isnan(value) else format(value, style)
