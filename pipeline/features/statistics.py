"""Statistics of the training data that features need: means, standard deviations, quantile edges.

They are computed once, by `pipeline prepare statistics`, and never by a run, so more data does not change a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.errors import shortened
from pipeline.features.settings import AnyFeature
from pipeline.files.find import place_of
from pipeline.files.stores import read_small
from pipeline.settings import read_json
from pipeline.settings.problems import problems


def filled(features: Sequence[AnyFeature], statistics: Path, root: Path) -> tuple[AnyFeature, ...]:
    """Return the features with missing statistics filled in from a file, which contains an object with an entry per
    feature, under the name of the column that it makes. If the file or an entry does not exist yet, the statistics stay
    missing. Raises ValueError if the file does not contain such an object."""
    place = place_of(str(statistics), root)
    try:
        if (content := read_small(place)) is None:
            return tuple(features)
        values = read_json(dict[str, Any], content)
        return tuple(
            _filled(feature, values[feature.makes[0]]) if feature.lacks and feature.makes[0] in values else feature
            for feature in features
        )
    except (ValueError, OSError) as error:
        said = problems(error)[0].text if isinstance(error, ValidationError) else str(error).splitlines()[0]
        raise ValueError(
            f"{place}, which data.statistics names, is not as `pipeline prepare statistics` writes it ({said}); make "
            "it again"
        ) from None


def _filled(feature: AnyFeature, values: Any) -> AnyFeature:
    """The feature with its statistics. Raises ValueError if `values` is not an object of these alone."""
    if not isinstance(values, dict) or {*values} != {*feature.statistics}:
        expected = " and ".join(feature.statistics)
        raise ValueError(f"{feature.makes[0]!r} has {shortened(values)}, expected {expected}")
    return type(feature).model_validate({**feature.model_dump(), **values, "computed": True})
