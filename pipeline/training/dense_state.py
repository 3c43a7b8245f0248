"""Saving and loading of the dense part's state: parameters, buffers, and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.optim.dense import AVERAGE, Average, FusedAdam
from pipeline.records import Array

MODEL, OPTIMIZER = "model/", "optimizer/"
ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")
"""Names of the state that torch's Adam keeps for each parameter that it has updated."""


class Replica(Protocol):
    """An optimizer that allocates all of its state before the first step."""

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Tensor]]: ...


DenseOptimizer = FusedAdam | Replica


def model_state(model: torch.nn.Module) -> dict[str, Array]:
    """Parameters and buffers by name, as views of the model's memory if it is in RAM."""
    return {name: value.numpy(force=True) for name, value in model.state_dict().items()}


def dense_state(
    model: torch.nn.Module, optimizer: DenseOptimizer, average: Average | None = None
) -> list[tuple[str, Array]]:
    """Names and values of all parameters, buffers, optimizer state and averages, in an order fixed by the model."""
    named = list(model_state(model).items())
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        named += [(f"{name}.{key}", state[key].numpy(force=True)) for key in sorted(state)]
    return named + [(f"{name}.average", value) for name, value in (average.items() if average else ())]


def save_dense(model: torch.nn.Module, optimizer: DenseOptimizer, average: Average | None = None) -> dict[str, Array]:
    """Return all parameters, buffers, optimizer state and averages, under the names that `load_dense` reads; as views
    if they are in RAM."""
    saved = {MODEL + name: value for name, value in model_state(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            saved[f"{OPTIMIZER}{key}/{name}"] = value.numpy(force=True)
    return saved | {AVERAGE + name: value for name, value in (average.items() if average else ())}


def load_dense(
    model: torch.nn.Module, optimizer: DenseOptimizer, saved: Mapping[str, Array], average: Average | None = None
) -> None:
    """Load what `save_dense` returned. Raises ValueError if it belongs to another model or optimizer."""
    load_values(model, {name.removeprefix(MODEL): value for name, value in saved.items() if name.startswith(MODEL)})
    tensors = {name: _copy_of(value) for name, value in saved.items() if name.startswith(OPTIMIZER)}
    parameters = dict(model.named_parameters())
    state: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for full_name, value in tensors.items():
        key, _, name = full_name.removeprefix(OPTIMIZER).partition("/")
        if name not in parameters:
            raise ValueError(f"the commit's dense optimizer differs from this one: it has {full_name}")
        state[name][key] = value
    if isinstance(optimizer, FusedAdam):
        optimizer.state.clear()
        for name, of_one in state.items():
            if of_one:
                _check_names(f"the dense optimizer, for {name},", ADAM_STATE, of_one)
                for key, value in of_one.items():
                    _check_like(f"{key} of {name}", torch.zeros(()) if key == "step" else parameters[name], value)
                held = parameters[name]
                optimizer.state[held] = {key: value.to(held.device) for key, value in of_one.items()}
    else:
        _fill(parameters, optimizer, state)
    if average:
        average.load(saved)


def load_values(model: torch.nn.Module, values: Mapping[str, Array]) -> None:
    """Load parameters and buffers by name. Raises ValueError if they belong to another model."""
    model.load_state_dict(check_values(model, values))


def check_values(model: torch.nn.Module, values: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return copies of these parameters and buffers. Raises ValueError if they belong to another model."""
    tensors = {name: _copy_of(value) for name, value in values.items()}
    _check_names("the dense model", model.state_dict(), tensors)
    for name, held in model.state_dict().items():
        _check_like(name, held, tensors[name])
    return tensors


def _copy_of(value: Array) -> Tensor:
    return torch.from_numpy(np.array(value)).clone()


def _fill(parameters: Mapping[str, Tensor], optimizer: Replica, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    for name, parameter in parameters.items():
        held = optimizer.state.get(parameter, {})
        _check_names(f"the dense optimizer, for {name},", held, state[name])
        for key, value in state[name].items():
            _check_like(f"{key} of {name}", held[key], value)
            held[key].copy_(value)


def _check_names(what: str, expected: Iterable[str], found: Iterable[str]) -> None:
    if set(expected) != set(found):
        raise ValueError(f"{what} of the commit does not fit: it has {sorted(found)}, expected {sorted(expected)}")


def _check_like(what: str, held: Tensor, value: Tensor) -> None:
    """Raise ValueError if the shape or dtype of a saved value differs from the current one."""
    if (held.shape, held.dtype) != (value.shape, value.dtype):
        raise ValueError(
            f"the dense part of the commit does not fit: {what} is {value.dtype} {list(value.shape)}, expected "
            f"{held.dtype} {list(held.shape)}"
        )


def merge_dense(saved: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Merge the saved states of all replicas, in rank order, into one state for any number of workers: weights,
    moments, averages and float buffers that differ are averaged; everything else is taken from the first replica."""
    merged = dict(saved[0])
    for name, first in saved[0].items():
        values: list[Any] = [one[name] for one in saved]
        differ = first.dtype.kind == "f" and not all(np.array_equal(first, value) for value in values)
        if differ and name.startswith((MODEL, OPTIMIZER, AVERAGE)):
            merged[name] = sum(values[1:], values[0]) / first.dtype.type(len(values))
    return merged


def dense_bytes(model: torch.nn.Module, numbers: int = 2) -> int:
    """Size in bytes of the model and of an optimizer with `numbers` values of state per parameter."""
    parameters = sum(value.numel() * value.element_size() for value in model.parameters())
    return numbers * parameters + sum(value.numel() * value.element_size() for value in model.state_dict().values())
