"""Runs that are killed between two instructions, right after a commit."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from support.runs.harness import THREE_TIERS, make_driver

from pipeline.driver.committer import Committer


class Killed(BaseException):
    """Simulated kill: as far as its files are concerned, the run ends between two instructions."""


def changed(workflow, **changes):
    """Copy of a workflow with fields changed, given as section__field=value."""
    for path, value in changes.items():
        section, _, field = path.partition("__")
        inner = getattr(workflow, section).model_copy(update={field: value}) if field else value
        workflow = workflow.model_copy(update={section: inner})
    return workflow


@contextmanager
def killed_after(commits):
    """Raise Killed right after this number of commits, or, at 0, before the first one."""
    commit, num = Committer.commit, iter(range(1, 1000))

    def counted(self, *args, **named):
        if not commits:
            raise Killed
        given_up = commit(self, *args, **named)
        if next(num) == commits:
            raise Killed
        return given_up

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Committer, "commit", counted)
        yield


def kill_after(commits, workflow, run_dir, monkeypatch, client=None, **sizes):
    """Run until `commits` commits are published."""
    run_dir.mkdir(exist_ok=True)
    with killed_after(commits):
        driver = make_driver(workflow, run_dir, client, **(THREE_TIERS | sizes))
        with pytest.raises(Killed):
            driver.run()
