"""Statistics of the training data that features need: means, standard deviations, quantile edges.

They are computed once, by `pipeline prepare statistics`, and never by a run, so more data does not change a feature.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.features.settings import AnyFeature
from pipeline.files.find import place_of
from pipeline.files.stores import read_small


def filled(features: Sequence[AnyFeature], statistics: Path, root: Path) -> tuple[AnyFeature, ...]:
    """Return the features with missing statistics filled in from a file, which contains an object with an entry per
    feature, under the name of the column that it makes. If the file or an entry does not exist yet, the statistics stay
    missing. Raises ValueError if the file does not contain such an object."""
    place = place_of(str(statistics), root)
    content = read_small(place)
    if content is None:
        return tuple(features)
    try:
        values: dict[str, dict[str, Any]] = dict(json.loads(content))
        return tuple(
            type(feature).model_validate({**feature.model_dump(), **_typed(values[name]), "computed": True})
            if feature.lacks and (name := feature.makes[0]) in values
            else feature
            for feature in features
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(
            f"{place}, which data.statistics names, is not as `pipeline prepare statistics` writes it ({said}); make "
            "it again"
        ) from None


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
