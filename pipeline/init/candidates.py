"""Candidates for the workflow of a log, of which `init --try` takes one."""

from __future__ import annotations

from dataclasses import replace

from pipeline.prepare.draft import DEEP, FAST, FREER, LINEAR, Draft


def candidates(draft: Draft) -> list[Draft]:
    """Drafts that differ in their recipe: linear models with strong and weak L2, which win where nothing interacts, the
    default, and its rows with a higher rate, which pays where each value is seen often. There is no linear model for
    several labels."""
    recipes = [DEEP, FAST] if len(draft.labels) > 1 else [LINEAR, FREER, DEEP, FAST]
    return [replace(draft, recipe=recipe) for recipe in recipes]
