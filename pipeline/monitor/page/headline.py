"""Texts of a page: what the run is, its state, its key figures, and its last messages."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path

from pipeline.monitor.page.disk_use import disk_left, left_text
from pipeline.monitor.page.humanized import percent, short_duration, short_number, short_size
from pipeline.monitor.page.panel import Nothing
from pipeline.monitor.story import Story
from pipeline.storage.lock import lock_file

QUIET_SECONDS = 20.0
"""Silence in seconds after which a page checks whether the run's process is alive."""


def state_of(story: Story, folder: Path, now: float) -> tuple[str, str]:
    """A word for the state of the run ("waiting", "running", "finished", "interrupted", "failed", "killed"), and a line
    that explains it. `now`: the time of day."""
    if story.ended:
        return story.ended.how, story.ended.text
    if not story.begins:
        return "waiting", "The run has written nothing yet."
    silent = now - story.last_at
    if silent < QUIET_SECONDS:
        return "running", ""
    if owner_lives(folder):
        return "running", f"The last line is {short_duration(silent)} old: something is taking long."
    return "killed", f"It ended {short_duration(silent)} ago without a message. The same command resumes it."


def owner_lives(folder: Path) -> bool:
    """True if the process that holds the lock of the run is alive on this machine."""
    try:
        owner = int(lock_file(folder).read_text())
        state = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return False
    # A killed process is a zombie until its parent waits for it.
    return state not in "ZX"


def head(folder: Path, live: bool, story: Story) -> str:
    """The run's name and state as HTML. `live`: False for a report, which is static."""
    word, explained = state_of(story, folder, time.time())
    if word == "running" and not live:
        explained = "This report was made during training."
    begin = story.begin
    facts = [str(folder)]
    if begin:
        workers = f"{begin.workers} workers" if begin.workers > 1 else "1 worker"
        facts += [f"{workers} on {begin.device}", f"batches of {begin.batch_size:,}"]
        if len(story.begins) > 1:
            facts.append(f"session {len(story.begins)}")
    if not live:
        facts.append(time.strftime("report of %d %B %Y, %H:%M"))
    name = escape(begin.name if begin else folder.name)
    return (
        f'<div class="head"><h1>{name}</h1><span class="state {word}">{word}</span></div>'
        f'<p class="facts">{" &middot; ".join(map(escape, facts))}</p>'
        + (f'<p class="note">{escape(explained)}</p>' if explained else "")
    )


def tiles(story: Story) -> str:
    """The key figures as HTML, each with a line above and a line below."""
    lately = story.lately()
    loss = lately.loss if lately else None
    shown = (
        _speed_tile(story), _tile("training loss", "-" if loss is None else f"{loss:.4f}", "nats"), _metric_tile(story),
        _progress_tile(story), _disk_tile(story),
    )  # fmt: skip
    return f'<div class="tiles">{"".join(shown)}</div>'


def _tile(title: str, value: str, below: str) -> str:
    return f'<div class="tile"><span>{escape(title)}</span><b>{escape(value)}</b><span>{escape(below)}</span></div>'


def _speed_tile(story: Story) -> str:
    title, (mean, seconds), lately = "examples/s with evaluation", story.mean_speed(), story.lately()
    if story.ended or not lately:
        return _tile(title, short_number(mean), f"in {short_duration(seconds)}")
    return _tile(title, short_number(lately.examples / lately.seconds), f"now; {short_number(mean)} on average")


def _metric_tile(story: Story) -> str:
    found = [one for _, one in story.evaluations if one.split != "train" and one.metrics.get("auc") is not None]
    if not found:
        return _tile("AUC", "-", "no evaluation yet")
    last = found[-1]
    return _tile("AUC", f"{last.metrics['auc']:.4f}", f"{last.split}, epoch {last.epoch}")


def _progress_tile(story: Story) -> str:
    begin, lately = story.begin, story.lately()
    done = lately.tick.examples if lately else begin.examples if begin else 0
    share = done / begin.total if begin and begin.total else 0.0
    if story.ended:
        early = story.ended.how == "finished" and share < 1
        epochs = (
            f" in {max((e.epoch for _, e in story.evaluations), default=lately.tick.epoch + 1 if lately else 0)} epochs"
        )
        note = f"{short_number(done)} examples{f'{epochs}: it ended early' if early else ''}"
        return _tile("done", percent(1.0 if early else share), note)
    rate = lately.examples / lately.seconds if lately else 0.0
    left = (begin.total - done) / rate if begin and rate > 0 else None
    epoch = f"epoch {lately.tick.epoch + 1} of {begin.epochs}" if lately and begin else "not begun"
    return _tile("done", percent(share), f"{epoch}, {short_duration(left)} left" if left is not None else epoch)


def _disk_tile(story: Story) -> str:
    left = disk_left(story)
    if left is None:
        return _tile("disk", "-", "no tick yet")
    if story.ended or left.seconds is None or left.seconds > 100 * 86400:
        return _tile("disk left", short_size(left.left_bytes), left_text(left) if not story.ended else "for the log")
    return _tile("disk lasts", short_duration(left.seconds), f"{short_size(left.left_bytes)} left")


def messages(story: Story) -> str:
    """The last messages as HTML, newest first."""
    said = [
        f"<li><time>{time.strftime('%d %b %H:%M:%S', time.localtime(one.at))}</time>{escape(one.text)}</li>"
        for one in reversed(story.messages)
    ]
    return f"<ul class='messages'>{''.join(said)}</ul>" if said else Nothing("No message.")
