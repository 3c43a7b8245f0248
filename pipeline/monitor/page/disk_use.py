"""Disk use: size of the log, commits, and how long the space will last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.monitor.live.lines import CommitDone
from pipeline.monitor.page.humanized import short_duration, short_size
from pipeline.monitor.page.panel import Followed, Nothing, Panel, lapses_panel
from pipeline.monitor.page.style import CAUSE_COLORS, RED, hover_on, over_run_time, plain_figure, size_axis
from pipeline.monitor.story import Lapse, Story

COMMIT_COLOR = CAUSE_COLORS["commit"]
LEAST_SECONDS = 60.0
"""Minimum period over which the growth of the log is computed."""


class DiskLeft(NamedTuple):
    """Space left for the log, and how long it will last."""

    left_bytes: int
    """Bytes by which the log may still grow, limited by its cap and the free space on the disk."""
    bytes_per_second: float | None
    """Growth of the log in the second half of this session; None if that period is too short."""

    @property
    def seconds(self) -> float | None:
        """Seconds until the space is full at this rate; None if the log is not growing."""
        grows = self.bytes_per_second is not None and self.bytes_per_second > 0
        return self.left_bytes / self.bytes_per_second if grows and self.bytes_per_second else None


def disk_left(story: Story) -> DiskLeft | None:
    """Space left for the log; None before the first tick."""
    tick, begin = story.tick, story.begin
    if not tick or not begin:
        return None
    session = len(story.begins) - 1
    points = [(i.end, i.tick.disk_bytes) for i in story.lapses if i.session == session]
    points.append((story.run_time, tick.disk_bytes))
    half = [point for point in points if point[0] >= (points[0][0] + points[-1][0]) / 2]
    seconds = half[-1][0] - half[0][0]
    growth = (half[-1][1] - half[0][1]) / seconds if seconds >= LEAST_SECONDS else None
    return DiskLeft(min(max(begin.disk_cap_bytes - tick.disk_bytes, 0), tick.free_bytes), growth)


def left_text(left: DiskLeft) -> str:
    """How long the disk will last, in words."""
    if left.bytes_per_second is None:
        return f"{short_size(left.left_bytes)} left"
    if left.seconds is None:
        return "the log is not growing"
    return f"full in {short_duration(left.seconds)}" if left.seconds < 100 * 86400 else "lasts for months"


def disk_panel() -> Panel:
    """The panel "Disk"."""
    shown = over_run_time(plain_figure("size of the log"))
    size_axis(shown.yaxis)
    shown.y_range.update(start=0, min_interval=1 << 20)
    followed, dots = Followed(_size_columns), Followed(_commit_columns)
    line = shown.line("at", "bytes", source=followed.source, color=RED, line_width=2)
    commits = shown.scatter("at", "bytes", source=dots.source, color=COMMIT_COLOR, size=4)
    hover_on(shown, line, [("run time", "@at{00:00:00}"), ("log", "@note")])
    hover_on(shown, commits, [("", "@note"), ("took", "@took{0.00} s")], "mouse")

    def line_of(story: Story) -> str:
        dots.update(story.commits, story.versions["commits"])
        if not story.lapses:
            return Nothing("Nothing has been written yet.")
        last, begin = story.lapses[-1].tick, story.begin
        cap = begin.disk_cap_bytes if begin else 0
        used, free = short_size(last.disk_bytes), short_size(last.free_bytes)
        said = f"{used} of at most {short_size(cap)}; {free} free on the disk"
        left = disk_left(story)
        said += f"; {left_text(left)}" if left and not story.ended else ""
        if story.num_commits:
            mean = short_duration(story.commit_seconds / story.num_commits)
            said += f"; {story.num_commits:,} commits, {mean} each on average"
        return f"<p>{said}</p>"

    return lapses_panel("disk", shown, followed, line_of)


def _size_columns(lapses: Sequence[Lapse], first: int) -> dict[str, list[object]]:
    sizes = [i.tick.disk_bytes for i in lapses[first:]]
    return {"at": [i.end for i in lapses[first:]], "bytes": [*sizes], "note": [short_size(size) for size in sizes]}


def _commit_columns(commits: Sequence[tuple[float, CommitDone]], first: int) -> dict[str, list[object]]:
    new = commits[first:]
    names = [f"commit {one.number}{f' ({one.name})' if one.name else ''}" for _, one in new]
    return {
        "at": [at for at, _ in new],
        "took": [one.took for _, one in new],
        "bytes": [one.log_bytes for _, one in new],
        "note": [f"{name}, {short_size(one.log_bytes)}" for name, (_, one) in zip(names, new, strict=True)],
    }
