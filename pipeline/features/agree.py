"""Check that a workflow's features are consistent with each other and with its columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.errors import did_you_mean
from pipeline.features.any import AnyFeature


def check_features(
    features: Sequence[AnyFeature], categories: Collection[str], labels: Collection[str], weight: str | None
) -> None:
    """Raise ValueError if a feature reads a column that a later feature makes, if it makes an existing column, or if a
    rule for rare values does not belong to a category."""
    seen: dict[str, int] = {}
    for n, feature in enumerate(features):
        where = f"data.features[{n}] ({feature.kind})"
        later = {name for other in features[n:] for name in other.makes}
        if unmade := [name for name in feature.reads if name in later]:
            raise ValueError(f"{where} reads {unmade[0]!r}, which no earlier feature makes; move its feature up")
        if known := [name for name in feature.reads if name in labels]:
            raise ValueError(f"{where} reads {known[0]!r}, which is a label; examples to score have no labels")
        for name in feature.makes:
            if name in seen or name in (*labels, weight):
                other = f"data.features[{seen[name]}] does" if name in seen else "data.labels or data.weight names"
                raise ValueError(f"{where} makes column {name!r}, which {other} too; give it another name")
            seen[name] = n
        if feature.kind == "rare" and feature.column not in categories:
            hint = did_you_mean(feature.column, categories, "there are")[1]
            raise ValueError(f"{where}.column is {feature.column!r}, which is not in data.categories{hint}")
    rare = [feature.column for feature in features if feature.kind == "rare"]
    if twice := sorted({name for name in rare if rare.count(name) > 1}):
        raise ValueError(f"data.features has several rules for rare values of {twice[0]!r}; leave one")
