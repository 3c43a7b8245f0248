"""Results of a study: the best workflow as a file, a page with Optuna's plots, and a summary in words."""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from pipeline.monitor.runs import find_runs, table_of_runs
from pipeline.settings.changes import parsed
from pipeline.storage.files import Files
from pipeline.tune.study import Study

PICTURES = (
    "plot_optimization_history", "plot_intermediate_values", "plot_param_importances", "plot_slice",
    "plot_parallel_coordinate",
)  # fmt: skip
ENDED = {
    TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
    TrialState.RUNNING: "not finished",
}  # fmt: skip
BEST = '''"""Best of the trials in {out}: trial {number}, {metric} of validation {value:.5f}."""

from pathlib import Path

from pipeline.api import load

workflow = load(Path({file})).with_settings({{
{settings}
}})
'''
PAGE = """<!doctype html>
<meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px sans-serif; margin: 2em }} td, th {{ padding: 2px 8px; text-align: left }}
pre {{ overflow-x: auto }}</style>
<h1>{title}</h1><pre>{text}</pre>{body}
"""


def write_best(study: Study, trial: FrozenTrial) -> Path:
    """Write the workflow of a trial to `best.py`, as changes to the tuned file."""
    settings = dict(parsed(study.set)) | study.settings(trial)
    content = BEST.format(
        out=study.out, number=trial.number, metric=study.fixed.metric, value=trial.values[0],
        file=json.dumps(study.file),
        settings="\n".join(f"    {json.dumps(name)}: {literal(value)}," for name, value in settings.items()),
    )  # fmt: skip
    path = study.out / "best.py"
    Files().replace(path, [content.encode()])
    return path


def literal(value: object) -> str:
    """Python source of a value."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def line_of(trial: FrozenTrial, metric: str) -> str:
    """Outcome of a trial in words."""
    text = trial.user_attrs.get("text", "")
    if trial.state == TrialState.COMPLETE:
        return f"trial {trial.number}: {metric} {trial.values[0]:.5f} in epoch {trial.user_attrs['epoch']}"
    return f"trial {trial.number}: {ENDED[trial.state]}{f': {text}' if text else ''}"


def counts_of(trials: Sequence[FrozenTrial]) -> str:
    states = [trial.state for trial in trials]
    return ", ".join(f"{states.count(state)} {word}" for state, word in ENDED.items() if state in states)


def table_of(study: Study, width: int) -> str:
    """Table of the trials' runs as in `pipeline runs`, ordered by the study's metric: complete trials, the best first,
    then the others."""
    runs = {Path(run.folder).name: run for run in find_runs(study.out / "trials")[0]}
    names = [study.run_dir(trial.number).name for trial in study.ranked()]
    order = [*names, *(name for name in runs if name not in names)]
    metric = study.fixed.metric
    title = f"{study.out / 'trials'}: best {metric} of validation first, then trials that were pruned or failed"
    return f"{title}\n\n{table_of_runs([runs[n] for n in order if n in runs], width, metric.partition(':')[0])}"


def write_page(study: Study, text: str) -> str:
    """Write `report.html`, which needs no network. Returns a line with its location and what is missing in it."""
    path = study.out / "report.html"
    names = list(study.space)
    rows = [["trial", "ended", *names]]
    rows += [
        [str(t.number), line_of(t, study.fixed.metric), *(_cell(t.params[n]) for n in names)] for t in study.trials
    ]
    table = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    pictures, note = [], ""
    if find_spec("plotly"):
        pictures = list(_pictures(study.optuna))
    else:
        note = "; it has no plots because the package plotly is not installed"
    title = html.escape(f"Study of {study.workflow.name}")
    body = f"<table>{table}</table>\n{''.join(pictures)}"
    Files().replace(path, [PAGE.format(title=title, text=html.escape(text), body=body).encode()])
    return f"report: {path}{note}"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _pictures(study: optuna.Study) -> Iterator[str]:
    """Optuna's plots in HTML; the first contains the script that draws all."""
    library: bool = True
    for name in PICTURES:
        draw: Callable[[optuna.Study], Any] = getattr(optuna.visualization, name)
        try:
            with warnings.catch_warnings():
                # With few trials the importances are equal.
                warnings.simplefilter("ignore")
                figure = draw(study)
        except (ValueError, RuntimeError) as error:
            # Importances need several trials with different values.
            yield f"<p>{name}: {html.escape(str(error))}</p>\n"
            continue
        yield figure.to_html(full_html=False, include_plotlyjs=library)
        library = False
