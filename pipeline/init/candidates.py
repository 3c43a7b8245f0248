"""Candidates for the workflow of a log, of which `init --try` takes one."""

from __future__ import annotations

from dataclasses import replace

from pipeline.prepare.draft import Draft, Recipe

L2 = (50.0, 10.0, 2.0)
"""L2 of all rows at every step, in units of the weight of one training row. A value needs about so many examples until
its own rate outweighs that of all."""


def candidates(draft: Draft) -> list[Draft]:
    """Drafts that differ in their recipe, the simplest first: a linear model before one with interactions, and strong
    L2 before weak. There is no linear model for several labels."""
    kinds = [*(["LR"] if len(draft.labels) == 1 else []), draft.default_kind]
    recipes = [Recipe(kind, l2) for kind in kinds for l2 in L2] + [Recipe(draft.default_kind, None)]
    return [replace(draft, recipe=recipe) for recipe in recipes]
