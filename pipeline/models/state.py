"""Everything that training changes in the dense part: parameters, buffers, and the optimizer's state of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.records import Array

MODEL, OPTIMIZER = "model/", "optimizer/"


class Replica(Protocol):
    """An optimizer whose state is there, in memory of its own, before the first step."""

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Tensor]]: ...


Optimizer = torch.optim.Optimizer | Replica


def model_state(model: torch.nn.Module) -> dict[str, Array]:
    """Parameters and buffers by name; views of the model's memory."""
    return {name: value.numpy(force=True) for name, value in model.state_dict().items()}


def dense_state(model: torch.nn.Module, optimizer: Optimizer) -> list[tuple[str, Array]]:
    """Names and values of all parameters, buffers and optimizer state, in an order that the model fixes."""
    named = list(model_state(model).items())
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        named += [(f"{name}.{key}", state[key].numpy(force=True)) for key in sorted(state)]
    return named


def save_dense(model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Array]:
    """All of it under names that `load_dense` takes apart again; views, nothing is copied."""
    saved = {MODEL + name: value for name, value in model_state(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            saved[f"{OPTIMIZER}{key}/{name}"] = value.numpy(force=True)
    return saved


def load_dense(model: torch.nn.Module, optimizer: Optimizer, saved: Mapping[str, Array]) -> None:
    """Put back what `save_dense` gave. ValueError: it is that of another model."""
    tensors = {name: torch.from_numpy(np.array(value)).clone() for name, value in saved.items()}
    values = {name.removeprefix(MODEL): value for name, value in tensors.items() if name.startswith(MODEL)}
    try:
        model.load_state_dict(values)
    except RuntimeError as error:
        raise ValueError(f"the dense model of the commit is not this one: {error}") from error
    state: dict[str, dict[str, Any]] = {}
    for full_name, value in tensors.items():
        if full_name.startswith(OPTIMIZER):
            key, name = full_name.removeprefix(OPTIMIZER).split("/", 1)
            state.setdefault(name, {})[key] = value
    if isinstance(optimizer, torch.optim.Optimizer):
        numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
        numbered = {numbers[name]: values for name, values in state.items()}
        optimizer.load_state_dict({"state": numbered, "param_groups": optimizer.state_dict()["param_groups"]})
    else:
        _fill(model, optimizer, state)


def _fill(model: torch.nn.Module, optimizer: Replica, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    for name, parameter in model.named_parameters():
        held, values = optimizer.state.get(parameter, {}), state.get(name, {})
        if held.keys() != values.keys():
            raise ValueError(
                f"the dense optimizer of the commit is not this one: of {name} it has {sorted(values)}, expected "
                f"{sorted(held)}"
            )
        for key, value in values.items():
            held[key].copy_(value)


def merge_dense(saved: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Of what the replicas of a run saved, in the order of their ranks, one state for any number of workers: means of
    weights, moments and float buffers where they differ. Everything else is as the first has it."""
    merged = dict(saved[0])
    for name, first in saved[0].items():
        values: list[Any] = [one[name] for one in saved]
        differ = first.dtype.kind == "f" and not all(np.array_equal(first, value) for value in values)
        if differ and name.startswith((MODEL, OPTIMIZER)):
            merged[name] = sum(values[1:], values[0]) / first.dtype.type(len(values))
    return merged


def dense_bytes(model: torch.nn.Module, numbers: int = 2) -> int:
    """Bytes of the model and of an optimizer with so many numbers a parameter."""
    parameters = sum(value.numel() * value.element_size() for value in model.parameters())
    return numbers * parameters + sum(value.numel() * value.element_size() for value in model.state_dict().values())
