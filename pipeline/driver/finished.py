"""The answer to the command of a run that has ended, from the newest manifest alone, without workers or tiers."""

from __future__ import annotations

from pipeline.commits.manifest import Commits
from pipeline.commits.reading import hold
from pipeline.commits.run_state import newest_state
from pipeline.driver.best import BestEpoch
from pipeline.driver.result import WORKFLOW, agrees, check_outputs, is_tested, read_result
from pipeline.driver.resume import check_newest, description, position_over, records_all
from pipeline.driver.session import Session
from pipeline.monitor.history import History
from pipeline.monitor.report import evaluated, summary
from pipeline.storage.files import Files


def finished(session: Session) -> list[str]:
    """Return lines for the user: that nothing is left to do, the last evaluation, and what can be done instead. Empty
    if the run has not ended, if a test is due, or if an output file is missing or damaged. Raises ValueError if the run
    directory contains a run of another workflow, or results of other settings or data, and Damaged if the newest
    manifest is damaged."""
    run_dir, checked = session.run_dir, session.checked
    if not (run_dir / "commits").is_dir() or not Commits(run_dir, Files(), 1).numbers():
        return []
    with hold(run_dir, "last") as held:
        newest = held.manifest
    newest_state([newest])
    workflow, agenda = checked.workflow, checked.agenda
    history, best = History(), BestEpoch(workflow)
    history.load(newest.state)
    # The devices of other processes are unknown until these start, and a difference only causes a warning.
    model = newest.state["environment"].get("device", "") if session.spec else session.device.model
    now = description(
        workflow, checked.source.identity, model, checked.world, agenda.steps_of_epoch, checked.source.side_files
    )
    at = position_over(newest, now)
    if not (at == agenda.end and records_all(newest, now)) and not best.stops(history):
        return []
    warnings = check_newest([newest], now, agenda, workflow)
    result = read_result(run_dir)
    if not result or result["stopped"] or not agrees(result, newest.state["epochs"], newest.state["trained"]):
        return []
    if not is_tested(result, agenda.num_examples, checked.source.identity):
        return []
    if any(check_outputs(run_dir, newest)) or not (run_dir / WORKFLOW).is_file():
        return []
    plateau, ended = workflow.schedule.plateau, f"epoch {at.epoch}"
    more = f"--set 'schedule.epochs=N (more than {workflow.schedule.epochs})'"
    if best.stops(history) and plateau:
        more = f"--set 'schedule.plateau.stop_after=N (more than {plateau.stop_after})'"
    if at.span is not None:
        more, ended = "--extend DATA", f"span {at.span}"
    return [
        *warnings,
        f"nothing to do: {run_dir} has ended after {ended}, with commit {newest.number}",
        *(evaluated(epoch) for epoch in result["epochs"][-1:]),
        summary(result),
        f"to train on from it: {more}; to start over, and move this run aside: --fresh",
    ]
