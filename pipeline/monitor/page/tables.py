"""Texts and tables of a report: what the run is, its state, its key figures and its last messages; evaluations, the
run, its result, stages, data and settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipeline.monitor.live.lines import Evaluated
from pipeline.monitor.report import (
    LAST,
    OF_LABEL,
    metric_text,
    number,
    of_labels,
    percent,
    short_duration,
    short_number,
    short_size,
)
from pipeline.monitor.story import Story
from pipeline.spans.passes import SPAN
from pipeline.storage.lock import lock_file

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


QUIET_SECONDS = 20.0
"""Silence in seconds after which it is checked whether the run's process is alive."""
OF_A_SPLIT = ("auc", "rmse")
"""Metrics that may be a key figure, in order of preference."""


def state_of(story: Story, run_dir: Path, now: float) -> tuple[str, str]:
    """A word for the state of the run ("waiting", "running", "finished", "interrupted", "failed", "killed"), and a line
    that explains it. `now`: the time of day."""
    if story.ended:
        return story.ended.how, story.ended.text
    if not story.begin:
        return "waiting", "The run has written nothing yet."
    silent = now - story.last_at
    if silent < QUIET_SECONDS:
        return "running", ""
    if owner_lives(run_dir):
        return "running", f"The last line is {short_duration(silent)} old: something is taking long."
    return "killed", f"It ended {short_duration(silent)} ago without a message. The same command resumes it."


def owner_lives(run_dir: Path) -> bool:
    """True if the process that holds the lock of the run is alive on this machine."""
    try:
        owner = int(lock_file(run_dir).read_text())
        state = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return False
    # A killed process is a zombie until its parent waits for it.
    return state not in "ZX"


def head(run_dir: Path, story: Story, now: float, every: int | None) -> str:
    """The run's name, state and progress. `every`: seconds after which a browser reloads the file; None: never."""
    word, explained = state_of(story, run_dir, now)
    begin, facts = story.begin, [str(run_dir)]
    if begin:
        workers = f"{begin.workers} workers" if begin.workers > 1 else "1 worker"
        facts += [f"{workers} on {begin.device}", f"batches of {begin.batch_size:,}"]
        if len(story.starts) > 1:
            facts.append(f"session {len(story.starts)}")
    facts.append(time.strftime("written %d %B %Y, %H:%M:%S", time.localtime(now)))
    if every:
        facts.append(f"reloads itself every {every} s")
    name = escape(begin.name if begin else run_dir.name)
    return (
        f'<header><h1>{name} <span class="state {word}">{word}</span></h1>'
        f'<p class="facts">{" &middot; ".join(map(escape, facts))}</p>'
        f"{f'<p>{escape(explained)}</p>' if explained and word != 'finished' else ''}"
        f'<div class="progress"><i style="width:{100 * _share_done(story):.1f}%"></i></div></header>'
    )


def key_figures(story: Story) -> str:
    """The key figures, each with a line above and a line below."""
    shown = (
        f"<div><dt>{escape(title)}</dt><dd><b>{escape(value)}</b>{escape(below)}</dd></div>"
        for title, value, below in _figures(story)
    )
    return f"<dl>{''.join(shown)}</dl>"


def _figures(story: Story) -> Iterator[tuple[str, str, str]]:
    """Yield title, value and explanation of each key figure."""
    (mean, seconds), lately, begin = story.mean_speed(), story.lately(), story.begin
    running = lately is not None and not story.ended
    if lately and running:
        below = f"now; {short_number(mean)} on average"
        yield "examples/s with evaluation", short_number(lately.examples / lately.seconds), below
    else:
        yield "examples/s with evaluation", short_number(mean), f"in {short_duration(seconds)}"
    loss = lately.loss if lately else None
    yield "training loss", "-" if loss is None else f"{loss:.4f}", "of the last blocks"
    last = next((one for one in reversed(story.evaluations) if one.split != "train"), None)
    values = [(name, last.metrics.get(name)) for name in OF_A_SPLIT] if last else []
    title, value = next(((name, value) for name, value in values if value is not None), ("auc", None))
    where = f"span {last.epoch}" if last and last.split == SPAN else f"{last.split}, epoch {last.epoch}" if last else ""
    yield title.upper(), number(value, ".4f"), where or "no evaluation yet"
    yield "done", percent(_share_done(story)), _progress(story)
    if tick := story.tick:
        cap = short_size(begin.disk_cap_bytes if begin else None)
        yield "log on disk", short_size(tick.disk_bytes), f"of at most {cap}; {short_size(tick.free_bytes)} free"


def _share_done(story: Story) -> float:
    """Share of the agenda that is done; 1 if the run finished, even if it ended early."""
    if story.ended and story.ended.how == "finished":
        return 1.0
    return _done(story) / story.begin.total if story.begin and story.begin.total else 0.0


def _done(story: Story) -> int:
    return story.tick.examples if story.tick else story.begin.examples if story.begin else 0


def _progress(story: Story) -> str:
    """How far the run is, and how long it will take, in words."""
    begin, lately, done = story.begin, story.lately(), _done(story)
    if story.ended:
        early = story.ended.how == "finished" and begin and done < begin.total
        epochs = max((one.epoch for one in story.evaluations), default=story.tick.epoch + 1 if story.tick else 0)
        return f"{short_number(done)} examples{f' in {epochs} epochs: it ended early' if early else ''}"
    if not begin or not lately or not story.tick:
        return "not begun"
    left = f", {short_duration((begin.total - done) / rate)} left" if (rate := lately.examples / lately.seconds) else ""
    return f"epoch {story.tick.epoch + 1} of {begin.epochs}{left}"


def messages(story: Story) -> str:
    """The last messages, newest first."""
    said = (
        f"<li><time>{time.strftime('%d %b %H:%M:%S', time.localtime(one.at))}</time>{escape(one.text)}</li>"
        for one in reversed(story.messages)
    )
    return f"<ol>{''.join(said)}</ol>" if story.messages else ""
