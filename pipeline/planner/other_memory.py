"""Prediction of a run with half and with twice the memory from which its caps are chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.monitor.history import json_value
from pipeline.planner.basis import Basis
from pipeline.planner.hits import forecast
from pipeline.planner.predict import Prediction, predict
from pipeline.preflight.checked import Checked
from pipeline.preflight.chosen_caps import budget_of
from pipeline.preflight.setup import divide_caps
from pipeline.preflight.sizes import DoesNotFit

FACTORS = {"half": 0.5, "twice": 2.0}


@dataclass(frozen=True, slots=True)
class WithMemory:
    """The run with other memory; `prediction` is None if not even one batch fits, as `why_not` says."""

    memory: int
    prediction: Prediction | None = None
    why_not: str | None = None


def with_other_memory(checked: Checked, basis: Basis) -> dict[str, WithMemory]:
    """Predict the run for each of FACTORS. Empty if all caps are given."""
    found: dict[str, WithMemory] = {}
    if not checked.storage.leaves_out:
        return found
    for name, factor in FACTORS.items():
        memory = int(factor * budget_of(checked))
        storage = checked.storage.model_copy(update={"memory": memory})
        try:
            setup = divide_caps(replace(checked, storage=storage, run_dir=None, say=lambda line: None))
        except DoesNotFit as error:
            found[name] = WithMemory(memory, why_not=str(error))
            continue
        counts = forecast(setup, basis.work.values_of_example)
        found[name] = WithMemory(memory, predict(replace(basis, setup=setup, forecast=counts)))
    return found


def told(others: dict[str, WithMemory]) -> list[str]:
    """Describe them, a line each."""
    lines = []
    for name, of in others.items():
        text = of.why_not or ""
        if p := of.prediction:
            text = (
                f"{p.examples_per_second:,.0f} examples/s, {p.disk_rows_per_second:,.0f} rows/s from disk, at most "
                f"{format_size_up(int(p.ram_bytes))} of RAM"
            )
        lines.append(f"{name + ':':10}with {format_size_down(of.memory)} of memory {text}")
    return lines


def values_of(others: dict[str, WithMemory]) -> dict[str, Any]:
    """Values for JSON."""
    return dict(json_value({name: asdict(of) for name, of in others.items()}))
