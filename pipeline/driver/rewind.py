"""Going back to the commit before a span: the run forgets the span, and everything that was trained after it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.commits.manifest import Commits, Manifest
from pipeline.commits.reopen import keep_only
from pipeline.commits.run_state import newest_state
from pipeline.driver.result import METRICS, MODEL, RESULT, lines_of, read_result
from pipeline.monitor.page.page import write_report
from pipeline.spans.waiting import spans_done
from pipeline.storage.files import Files
from pipeline.storage.lock import RunLock


def rewind(run_dir: Path, span: str) -> list[str]:
    """Go back to the last commit before `span`. Returns lines for the user. A kill at any time leaves the run at one of
    its commits, from which the same call goes on.

    Raises ValueError if the run has no such span or commit, or a reader holds a commit that would be deleted, and
    Damaged if a manifest is damaged.
    """
    if not (run_dir / "commits").is_dir():
        raise ValueError(f"{run_dir} holds no run, so there is nothing to go back to")
    with RunLock(run_dir):
        commits = Commits(run_dir, Files(), keep=1)
        manifests = commits.all()
        names = newest_state(manifests).data["train"].spans if manifests else None
        if names is None:
            raise ValueError(f"{run_dir} has no commit of a run with spans; --rewind needs data.time or data.span")
        number, (done, is_whole) = _number_of(span, names), spans_done(manifests[-1].state)
        if number > done or (number == done and is_whole):
            undone, target = [], manifests[-1]
        else:
            undone, target = names[number : done + (not is_whole)], _before(commits.before_spans(), number, names)
        removed = commits.undo(target)
        keep_only(run_dir, commits, [m for m in manifests if m.number <= target.number])
        result = read_result(run_dir)
        if removed or (result and (result["commit"] or 0) > target.number):
            _follow(run_dir, commits.files, target)
    return _lines(target, span, undone, removed)


def _number_of(span: str, names: list[str]) -> int:
    """Number of a span in the run; of one that follows the last, as it does once it is undone, the number of spans."""
    if span not in names and span <= names[-1]:
        raise ValueError(f"--rewind {span}: the run has no such span; its last ones are {', '.join(names[-7:])}")
    return names.index(span) if span in names else len(names)


def _before(commits: Mapping[int, Manifest], number: int, names: list[str]) -> Manifest:
    """The commit before the span with this number. Raises ValueError if it is not kept."""
    if number in commits:
        return commits[number]
    earlier = max((one for one in commits if one < number), default=None)
    near = f"the nearest earlier one is before {names[earlier]}; or " if earlier is not None else ""
    raise ValueError(
        f"--rewind {names[number]}: the commit before this span is not kept; {near}begin again with --fresh"
    )


def _follow(run_dir: Path, files: Files, target: Manifest) -> None:
    """Make metrics and report those of the commit, and remove the result, which is that of a later one."""
    files.replace(run_dir / METRICS, [lines_of(target.state["epochs"])])
    # The result is removed last, since a repeated command finds by it what is left to do.
    for name in (MODEL, RESULT):
        if (run_dir / name).is_file():
            files.remove(run_dir / name)
    with suppress(OSError, ValueError):
        write_report(run_dir)


def _lines(target: Manifest, span: str, undone: list[str], removed: list[int]) -> list[str]:
    if not removed:
        return [f"nothing to undo: span {span} is not trained on in commit {target.number}, the last one"]
    known = target.state["data"]["train"]["spans"]
    gone = [name for name in undone if name not in known]
    again = f"; name the files of {', '.join(gone)} again with --extend" if gone else ""
    numbers = ", ".join(map(str, sorted(removed)))
    return [
        f"went back to commit {target.number}, before span {span}; undone: {', '.join(undone)}",
        f"servables that were exported from commit {numbers} hold what is undone: publish another, or export again",
        f"the next command trains from here{again}",
    ]
