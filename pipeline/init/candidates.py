"""Candidates for the workflow of a log, of which `init --try` takes one."""

from __future__ import annotations

from dataclasses import replace

from pipeline.prepare.draft import DEEP, FAST, LINEAR, Draft


def candidates(draft: Draft) -> list[Draft]:
    """Drafts that differ in their recipe, the simplest first: a linear model, which wins where nothing interacts, then
    the default, then its rows with a higher rate, which pays where each value is seen often. There is no linear model
    for several labels."""
    recipes = [DEEP, FAST] if len(draft.labels) > 1 else [LINEAR, DEEP, FAST]
    return [replace(draft, recipe=recipe) for recipe in recipes]
