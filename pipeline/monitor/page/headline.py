"""Texts of a report: what the run is, its state, its key figures, and its last messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pipeline.monitor.report import number, percent, short_duration, short_number, short_size
from pipeline.monitor.story import Story
from pipeline.spans.passes import SPAN
from pipeline.storage.lock import lock_file

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
