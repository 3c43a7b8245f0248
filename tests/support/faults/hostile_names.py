"""A run with hostile names: its columns, labels, name and folder contain markup of every kind of document that they
appear in."""

import json

from support.runs.live_lines import FakeRun

from pipeline.monitor.live.lines import Begin
from pipeline.storage.durable import own_checksum

NAMES = (
    "h <img src=x onerror=alert(1)>",
    "h $$\\href{javascript:alert(2)}{x}$$ \\(y\\)",
    "h <!--<script>",
    "h </script><script>alert(3)</script>",
    "h [bold]x[/bold] [link=javascript:alert(4)]y[/link]",
    "h \x1b[2J\x1b]0;title\x07 \x9b1A \r \u202e \x00",
    "h @x{safe} $index {{ 7*7 }} {% raise %}",
    "h \" onmouseover=alert(5) '",
    "=1+1",
)
FOLDER = "h <img src=x onerror=alert(6)> $$\\href{javascript:alert(7)}{x}$$ [bold] \x1b[2J"
"""Name of a folder, so without slashes and zero bytes."""
ALL = " ".join(NAMES)


def write_hostile(parent, number=0):
    """Write the run, and return its folder. `number`: a nonzero value gives a run with other settings."""
    folder = parent / f"{FOLDER} {number}"
    run = FakeRun(epochs=2, labels=NAMES).say(ALL).begin().train().evaluate("test").commit(ALL)
    run.end(text=ALL)
    run.lines = [
        line.model_copy(update={"name": ALL, "device": ALL, "versions": {ALL: ALL}})
        if isinstance(line, Begin)
        else line
        for line in run.lines
    ]
    run.write(folder)
    (folder / "commits").mkdir()
    columns = [{"name": name, "dim": number} for name in NAMES]
    workflow = {"name": f"{ALL} {number}", "data": {"root": f"{ALL} {number}", "labels": NAMES, "categories": columns}}
    (folder / "workflow.json").write_text(json.dumps(workflow | {"model": {"kind": f"{ALL} {number}"}}))
    (folder / "result.json").write_text(json.dumps(RESULT))
    return folder


RESULT = {
    "name": ALL, "stopped": ALL, "commit": 22, "rows": 7, "auc": 0.7, "logloss": 0.4, "split": ALL, "examples": 9,
    "seconds": 5.0, "examples_per_second": 2.0, "stages": {ALL: 1.8}, "cpu_seconds": {ALL: 0.4}, "hidden": {ALL: 0.6},
    "epochs": [], "tiers": {ALL: {"hits": 2, "hit_rate": 0.6, "rows_in": 1, "rows_out": 1}}, "fingerprint": ALL,
    "workers": [], "ready": 1.0, "disk": {"commits": 22, "written_bytes": 7, "write_amplification": 3.9},
    "data": {ALL: {"files": [], "digest": ALL}},
}  # fmt: skip
RESULT["checksum"] = own_checksum(RESULT)
