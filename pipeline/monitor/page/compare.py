"""pipeline compare RUN RUN ...: a page with the settings that differ, metrics, speed and curves of several runs. Each
run has a colour, and a column or a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from pipeline.arguments import MAX_RUNS, compare_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command
from pipeline.monitor.command import check_run
from pipeline.monitor.page.humanized import percent, short_duration, short_number, short_size
from pipeline.monitor.page.metric_curves import METRIC_TITLES, by_epoch
from pipeline.monitor.page.page import Card, write_static
from pipeline.monitor.page.panel import Nothing, Panel, bar, chips, fixed_panel, plot_panel
from pipeline.monitor.page.report import known_run, sound_result, story_of
from pipeline.monitor.page.speed import speed_columns
from pipeline.monitor.page.style import CAUSE_COLORS, RUN_COLORS, axis_format, hover_on, over_run_time, plain_figure
from pipeline.monitor.page.tables import html_table, setting_text
from pipeline.monitor.page.time_use import shares_of, spent_in, waiting_share
from pipeline.monitor.report import OF_LABEL
from pipeline.monitor.runs import Run, different_settings, titles_of
from pipeline.monitor.story import Story
from pipeline.spans.passes import SPAN

COMPARED_SPLITS = ("validation", "test")
CURVES_OF = (SPAN, *COMPARED_SPLITS)
"""Splits in order of preference; the first one that any run has is plotted."""
NOT_SET = "not set"
Points = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the runs that are compared."""

    name: str
    """The shortest suffix of its path that distinguishes it from the others."""
    color: str
    story: Story
    run: Run | None
    """Settings and metrics; None before the first commit."""
    result: Mapping[str, Any] | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if a folder is not a run or the file cannot be written, 130 if
    interrupted."""
    args = compare_arguments().parse_args(argv)
    return run_command(lambda: write_comparison(args.runs, args.out), heeds=True)


def write_comparison(run_dirs: Sequence[Path], out: Path) -> str:
    """Write the page that compares runs, and return a line that says where. Raises ValueError if a folder is not a run,
    and OSError if the page cannot be written."""
    refuse_remote("--out", out)
    if not 2 <= len(run_dirs) <= MAX_RUNS:
        raise ValueError(f"compare takes 2 to {MAX_RUNS} folders of runs, got {len(run_dirs)}")
    for run_dir in run_dirs:
        check_run(run_dir)
    read = [(known_run(run_dir), sound_result(run_dir)) for run_dir in run_dirs]
    compared = [
        Compared(name, color, story_of(run_dir), *of)
        for run_dir, name, color, of in zip(run_dirs, names_of(run_dirs), RUN_COLORS, read, strict=False)
    ]
    write_static(out, "Comparison of runs", comparison_cards(compared), Story())
    return f"wrote {out}: open it in a browser"


def names_of(run_dirs: Sequence[Path]) -> list[str]:
    """Names of folders: the shortest distinct suffixes of their paths."""
    parts = [path.resolve().parts for path in run_dirs]
    for last in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-last:]) for each in parts]
        if len({*names}) == len(names):
            return names
    return [str(path) for path in run_dirs]


def comparison_cards(runs: Sequence[Compared]) -> list[Card]:
    """The cards of the page, in order."""
    head = f'<div class="head"><h1>{len(runs)} runs compared</h1></div>{_legend(runs)}'
    return [
        Card("", "bare", fixed_panel("head", head)),
        Card("Result", "whole", fixed_panel("results", _warned(runs) + _columns(runs, dict(_results(runs))))),
        Card("Settings that differ", "whole", fixed_panel("settings", _settings(runs))),
        Card("AUC", "half", _metric_panel(runs, "auc")),
        Card("Logloss", "half", _metric_panel(runs, "logloss")),
        Card("Normalized entropy", "half", _metric_panel(runs, "ne")),
        Card("Calibration", "half", _metric_panel(runs, "calibration")),
        Card("Loss", "half", _loss_panel(runs)),
        Card("Speed", "half", _speed_panel(runs)),
        Card("Where the time goes", "whole", fixed_panel("time_use", _time_use(runs))),
    ]


def _warned(runs: Sequence[Compared]) -> str:
    if len({*titles_of([run.run for run in runs])}) == 1:
        return ""
    warning = 'These runs were evaluated on data that differ (line "judged by"): their metrics cannot be compared.'
    return f'<p class="note">{warning}</p>'


def _legend(runs: Sequence[Compared]) -> str:
    return chips({run.name: (run.color, "") for run in runs})


def _columns(runs: Sequence[Compared], rows: Mapping[str, Sequence[str]]) -> str:
    """A table with a column for each run."""
    return html_table(("", *(run.name for run in runs)), ((name, *texts) for name, texts in rows.items()))


def _results(runs: Sequence[Compared]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and texts of each table row, if at least one run has a value."""
    yield "judged by", titles_of([run.run for run in runs])
    for split in COMPARED_SPLITS:
        of = [getattr(run.run, split) if run.run else {} for run in runs]
        if any(of):
            yield f"epoch, {split}", [str(values.get("epoch", "-")) for values in of]
        for metric in (name for name in OF_LABEL if name != "gauc_share"):
            found = [values.get(metric) for values in of]
            if any(value is not None for value in found):
                yield f"{metric}, {split}", ["-" if value is None else f"{value:.5f}" for value in found]
    yield "training examples/s", [short_number(_speed(run)) for run in runs]
    yield "run time", [short_duration(_seconds(run)) for run in runs]
    yield "examples trained on", [short_number(_trained(run)) for run in runs]
    yield "size of the log", [short_size(i[-1].tick.disk_bytes) if (i := run.story.lapses) else "-" for run in runs]
    yield "training waits", [percent(waiting_share(spent_in(i))) if (i := run.story.lapses) else "-" for run in runs]


def _seconds(run: Compared) -> float | None:
    if run.result:
        return float(run.result["seconds"])
    return run.story.run_time or None


def _trained(run: Compared) -> int | None:
    if run.result:
        return int(run.result["examples"])
    return run.story.lapses[-1].tick.trained if run.story.lapses else None


def _speed(run: Compared) -> float | None:
    trained, seconds = _trained(run), _seconds(run)
    return trained / seconds if trained and seconds else None


def _settings(runs: Sequence[Compared]) -> str:
    differ = {
        name: different_texts([run.run.settings.get(name, NOT_SET) if run.run else NOT_SET for run in runs])
        for name in different_settings([run.run for run in runs if run.run])
    }
    return _columns(runs, differ) if differ else Nothing("No setting differs.")


def different_texts(values: Sequence[Any]) -> list[str]:
    """Texts of a setting's values; distinct values have distinct texts."""
    whole = [json.dumps(value) for value in values]
    short = [setting_text(value) for value in values]
    return short if len({*short}) == len({*whole}) else whole


def _curves(
    name: str, shown: figure, runs: Sequence[Compared], points: Callable[[Compared], Points], nothing: str, style: str
) -> Panel:
    """A panel with a curve for each run that has points. `style`: format of the value under the pointer."""
    drawn = [run for run in runs if points(run)[0]]
    for run in drawn:
        x, y = points(run)
        source = ColumnDataSource({"x": list(x), "y": list(y), "run": [run.name] * len(x)})
        line = shown.line("x", "y", source=source, color=run.color, line_width=2)
        if len(x) < 60:
            shown.scatter("x", "y", source=source, color=run.color, size=5)
        hover_on(shown, line, [("", "@run"), ("", f"@y{{{style}}}")], "mouse")
    return plot_panel(name, shown, lambda story: _legend(drawn) if drawn else Nothing(nothing))


def _metric_panel(runs: Sequence[Compared], metric: str) -> Panel:
    def points_of(run: Compared, split: str) -> Points:
        known = [(e.epoch, e.metrics.get(metric)) for _, e in run.story.evaluations if e.split == split]
        found = [(float(epoch), value) for epoch, value in known if value is not None]
        return [epoch for epoch, _ in found], [value for _, value in found]

    # The test split gives a single point, validation a curve.
    split = next((s for s in CURVES_OF if any(points_of(run, s)[0] for run in runs)), COMPARED_SPLITS[0])
    shown = by_epoch(f"{METRIC_TITLES[metric]}, {split}")
    return _curves(metric, shown, runs, lambda run: points_of(run, split), "No evaluation.", "0.00000")


def _loss_panel(runs: Sequence[Compared]) -> Panel:
    shown = plain_figure("training loss, nats")
    shown.xaxis.update(axis_label="examples trained on", formatter=axis_format("short"))

    def points(run: Compared) -> Points:
        found = [(i.tick.trained, i.loss) for i in run.story.lapses if i.loss is not None]
        return [float(trained) for trained, _ in found], [loss for _, loss in found]

    return _curves("loss", shown, runs, points, "No block has been trained.", "0.0000")


def _speed_panel(runs: Sequence[Compared]) -> Panel:
    shown = over_run_time(plain_figure("examples/s"))
    shown.yaxis.formatter = axis_format("short")
    shown.y_range.start = 0

    def points(run: Compared) -> Points:
        columns = speed_columns("speed", run.story.lapses, 0)
        return columns["at"], columns["smooth"]

    return _curves("speed", shown, runs, points, "No block is done.", "0,0")


def _time_use(runs: Sequence[Compared]) -> str:
    """A bar for each run, divided by the shares of its time, and a legend."""
    spent = {run.name: shares_of(spent_in(run.story.lapses)) for run in runs}
    causes = [cause for cause in CAUSE_COLORS if any(shares.get(cause, 0.0) >= 0.005 for shares in spent.values())]
    if not causes:
        return Nothing("No run has recorded where its time went.")
    bars = []
    for name, shares in spent.items():
        parts = bar([(CAUSE_COLORS[cause], shares.get(cause, 0.0)) for cause in causes], "bar thick")
        train = percent(shares.get("train"))
        bars.append(f'<div class="meter named"><span>{escape(name)}</span>{parts}<b>{train}</b></div>')
    legend = chips({cause: (CAUSE_COLORS[cause], "") for cause in causes})
    return f"{legend}{''.join(bars)}<p>Share of the wall time; the number is that of training.</p>"
