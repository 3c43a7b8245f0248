"""Everything that training changes in the dense part: parameters, buffers, and the optimizer's state of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pipeline.records import Array

MODEL, OPTIMIZER = "model/", "optimizer/"


def model_state(model: torch.nn.Module) -> dict[str, Array]:
    """Parameters and buffers by name; views of the model's memory."""
    return {name: value.numpy(force=True) for name, value in model.state_dict().items()}


def dense_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, Array]]:
    """Names and values of all parameters, buffers and optimizer state, in an order that the model fixes."""
    named = list(model_state(model).items())
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        named += [(f"{name}.{key}", state[key].numpy(force=True)) for key in sorted(state)]
    return named


def save_dense(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Array]:
    """All of it under names that `load_dense` takes apart again; views, nothing is copied."""
    saved = {MODEL + name: value for name, value in model_state(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            saved[f"{OPTIMIZER}{key}/{name}"] = value.numpy(force=True)
    return saved


def load_dense(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Array]) -> None:
    """Put back what `save_dense` gave. ValueError: it is that of another model."""
    tensors = {name: torch.from_numpy(np.array(value)).clone() for name, value in saved.items()}
    values = {name.removeprefix(MODEL): value for name, value in tensors.items() if name.startswith(MODEL)}
    try:
        model.load_state_dict(values)
    except RuntimeError as error:
        raise ValueError(f"the dense model of the commit is not this one: {error}") from error
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    state: dict[int, dict[str, Any]] = {}
    for full_name, value in tensors.items():
        if full_name.startswith(OPTIMIZER):
            key, name = full_name.removeprefix(OPTIMIZER).split("/", 1)
            state.setdefault(numbers[name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def dense_bytes(model: torch.nn.Module) -> int:
    """Bytes of the model and of an optimizer with two numbers a parameter."""
    parameters = sum(value.numel() * value.element_size() for value in model.parameters())
    return 2 * parameters + sum(value.numel() * value.element_size() for value in model.state_dict().values())
