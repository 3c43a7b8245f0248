"""The search space of `pipeline tune`, which a workflow file may define as a value named `tune` next to `workflow`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pipeline.settings import Strict
from pipeline.settings.changes import kind_name


class Between(Strict):
    """Range of a number, including both ends; of whole numbers if both ends are whole."""

    low: int | float
    high: int | float
    """Ends of the range."""
    log: bool = False
    """True to draw the number on a logarithmic scale, as usual for learning rates."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Between:
        if not self.low < self.high:
            raise ValueError(
                f"low is {self.low} and high is {self.high}; low must be less, or give one choice: [{self.low}]"
            )
        if self.log and self.low <= 0:
            raise ValueError(f"low is {self.low}, but a logarithmic scale needs a number above 0; raise low")
        return self

    def nearest(self, value: float) -> int | float:
        """Return the number in the range that is closest to `value`."""
        return min(max(value, self.low), self.high)


def _choices(given: object) -> object:
    """Convert a list of choices to a tuple, with model classes replaced by their names."""
    if not isinstance(given, list | tuple):
        return given
    return tuple(kind_name(choice) if isinstance(choice, type) else choice for choice in given)


Values = Annotated[Between | Annotated[tuple[Any, ...], Field(min_length=1)], BeforeValidator(_choices)]


class Tune(Strict):
    """Search space of `pipeline tune`, instead of the one derived from the workflow."""

    space: Annotated[dict[str, Values], Field(min_length=1)]
    """Range or list of choices, by the dotted path of a setting. `buckets`: n keeps every n-th edge of all `Bucket`
    features. `rare`: `at_least` of all `Rare` features."""
