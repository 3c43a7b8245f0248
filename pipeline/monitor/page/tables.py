"""Tables of a report: evaluations, the run, its result, stages, data and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from pipeline.monitor.live.lines import Evaluated
from pipeline.monitor.report import LAST, OF_LABEL, metric_text, number, of_labels, percent, short_duration, short_size
from pipeline.monitor.story import Story
from pipeline.spans.passes import SPAN

GIB = 1 << 30
SENT_KINDS = ("keys", "rows", "gradients", "dense", "merge", "buffers", "agreement")
"""Kinds of traffic between workers, in the order of the table."""


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table of texts. The first column names the rows. The first `left` columns are left-aligned and wrap."""
    top = "".join(f'<th scope="col"{_left(n < left)}>{escape(text)}</th>' for n, text in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        f"{''.join(f'<td{_left(n < left)}>{escape(text)}</td>' for n, text in enumerate(others, 1))}</tr>"
        for first, *others in rows
    )
    return f'<div class="wide"><table>{f"<thead><tr>{top}</tr></thead>" * any(head)}<tbody>{body}</tbody></table></div>'


def _left(yes: bool) -> str:
    return ' class="text"' if yes else ""


def evaluations_table(story: Story) -> str:
    """A row for each of the last evaluations and each label, the newest first."""
    rows = [row for one in reversed(story.evaluations[-LAST:]) for row in _evaluation_rows(one)]
    names = [name for name in OF_LABEL if any(name in metrics for _, metrics in rows)]
    cells = [(what, *(metric_text(name, metrics.get(name)) for name in names)) for what, metrics in rows]
    return html_table(("evaluation", *names), cells) if cells else ""


def _evaluation_rows(one: Evaluated) -> list[tuple[str, Mapping[str, float]]]:
    # Metrics may be whole numbers in JSON, such as an AUC of 1.
    values = {name: float(value) for name, value in one.metrics.items() if value is not None}
    common, by_label = of_labels(values)
    what = f"span {one.epoch}, before training on it" if one.split == SPAN else f"{one.split}, epoch {one.epoch}"
    what += f", from example {one.from_example:,} on" if one.from_example else ""
    return [(f"{what}, {label}", of) for label, of in by_label.items()] or [(what, common)]


def run_table(story: Story) -> str:
    """Times, commits, memory, and versions of libraries."""
    if not story.begin:
        return ""
    facts = [("run time", short_duration(story.run_time)), ("sessions", f"{len(story.starts):,}")]
    if story.num_commits:
        mean = short_duration(story.commit_seconds / story.num_commits)
        facts.append(("commits", f"{story.num_commits:,}, {mean} each on average"))
    if tick := story.tick:
        facts.append(("memory of the driver's process", short_size(tick.rss_bytes)))
        facts.append(("CPU of live.jsonl and this report", percent(tick.observer_seconds / max(tick.seconds, 1e-9))))
    return html_table((), [*facts, *sorted(story.begin.versions.items())])


def result_table(result: Mapping[str, Any]) -> str:
    """Main values of result.json."""
    facts = [
        ("examples trained on", f"{result['examples']:,}"),
        ("seconds, of all sessions", f"{result['seconds']:,.1f}"),
        ("training examples/s, with evaluation and commits", number(result["examples_per_second"], ",.0f")),
        (f"AUC, {result['split'] or 'not evaluated'}", number(result["auc"], ".6f")),
        ("logloss", number(result["logloss"], ".6f")),
        ("rows of the table", f"{result['rows']:,}"),
        ("commits", f"{result['disk']['commits']:,}"),
        ("written to the log", short_size(result["disk"]["written_bytes"])),
        ("write amplification", number(result["disk"]["write_amplification"], ".2f")),
        ("blocks ready ahead of training, on average", number(result["ready"], ".1f")),
        ("fingerprint", result["fingerprint"]),
    ]
    for rows in result.get("out_of_place", ()):
        said = f"trained on with {rows['trained_with']}" if rows["trained_with"] else "left out"
        facts.append((f"rows {rows['kind']}, of {rows['span']}", f"{rows['rows']:,}, {said}"))
    if result["stopped"]:
        facts.append(("stopped early", result["stopped"]))
    return html_table((), facts)


def stages_table(result: Mapping[str, Any]) -> str:
    """Wall and CPU seconds of the stages in the last session, rows per tier over the whole run and, with several
    workers, the mean KiB per step that each sent to others."""
    kinds = [kind for kind in SENT_KINDS if any(kind in sent for sent in result["workers"])]
    sent_rows = [
        (str(rank), *(number(sent.get(kind, {}).get("bytes_per_step", 0) / 1024, ",.1f") for kind in kinds))
        for rank, sent in enumerate(result["workers"])
    ]
    # The last column is the share of time hidden behind training.
    stage_rows = [
        (
            stage, number(seconds, ",.1f"), number(result["cpu_seconds"].get(stage), ",.1f"),
            number(result["hidden"].get(stage), ".0%"),
        )
        for stage, seconds in result["stages"].items()
    ]  # fmt: skip
    tier_rows = [
        (
            name, _capacity(tier), number(tier["hits"], ",.0f"), number(tier["hit_rate"], ".1%"),
            number(tier["rows_in"], ",.0f"), number(tier["rows_out"], ",.0f"),
            number(tier["bytes"] / GIB if "bytes" in tier else None, ",.2f"),
        )
        for name, tier in result["tiers"].items()
    ]  # fmt: skip
    return "".join([
        html_table(("stage", "seconds", "CPU seconds", "during training"), stage_rows),
        html_table(("tier", "capacity", "hits", "hit rate", "rows in", "rows out", "GiB moved"), tier_rows),
        html_table(("KiB sent a step by worker", *kinds), sent_rows) if kinds else "",
    ])  # fmt: skip


def _capacity(tier: Mapping[str, Any]) -> str:
    if tier.get("capacity_rows") is not None:
        return f"{number(tier['capacity_rows'], ',.0f')} rows"
    capacity = tier.get("capacity_bytes")
    return f"{number(None if capacity is None else capacity / GIB, ',.1f')} GiB"


def data_table(result: Mapping[str, Any]) -> str:
    """Splits of the run's data, with their numbers of rows and sizes."""
    rows = []
    for split, of in result["data"].items():
        files = of.get("files") or []
        examples = sum(count * size for file in files for count, size in file.get("row_groups") or [])
        size = sum(file.get("size", 0) for file in files)
        rows.append((split, f"{len(files):,}", f"{examples:,}", short_size(size), str(of.get("digest", "-"))))
    return html_table(("split", "files", "examples", "size", "digest"), rows)


def settings_table(settings: Mapping[str, Any]) -> str:
    """All settings of the workflow, grouped by section."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, value in settings.items():
        group, _, name = path.partition(".")
        groups.setdefault(group if name else "", []).append((name or group, setting_text(value)))
    parts = [
        f'<div class="group"><h3>{escape(group)}</h3>{html_table((), rows, left=2)}</div>'
        for group, rows in groups.items()
    ]
    return f'<div class="groups">{"".join(parts)}</div>'


def setting_text(value: Any, most: int = 160) -> str:
    """A setting as text. Long texts are truncated; columns are shown by name."""
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        text = ", ".join(str(item["name"]) for item in value)
    elif isinstance(value, list):
        text = ", ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    else:
        text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= most else f"{text[:most]} ..."
