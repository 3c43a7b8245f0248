"""The MLP that most CTR models use as their deep part, and checks of a workflow's `model.args`: errors state the name,
the value, and what is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from pipeline.models.dice import Dice


def whole(name: str, value: object, minimum: int = 1) -> int:
    """Return the value. Raises ValueError if it is not an integer of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least {minimum}")
    return value


def widths(name: str, values: Sequence[int], minimum: int = 0) -> tuple[int, ...]:
    """Return the layer widths as a tuple. Raises ValueError if `values` are not positive integers for at least
    `minimum` layers."""
    if not isinstance(values, list | tuple) or len(values) < minimum:
        raise ValueError(f"{name} is {values!r}; expected the widths of at least {minimum} layers, such as [400, 400]")
    return tuple(whole(f"{name}[{layer}]", width) for layer, width in enumerate(values))


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return the value. Raises ValueError if it is not one of the choices."""
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return value


def flag(name: str, value: bool) -> bool:
    """Return the value. Raises ValueError if it is not a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected true or false")
    return value


def at_least_zero(name: str, value: float) -> float:
    """Return the value. Raises ValueError if it is not a finite number of at least 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a number of at least 0")
    return value


def probability(name: str, value: float) -> float:
    """Return the value. Raises ValueError if it is not a number of at least 0 and less than 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}; expected a probability of at least 0 and less than 1")
    return value


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
INITS = ("torch", "xavier")


class Deep(TypedDict, total=False):
    """Arguments that a model passes to its `mlp`; part of its workflow's `model.args`."""

    batch_norm: bool
    dropout: float
    activation: str
    init: str


def mlp(
    num_inputs: int, hidden: Sequence[int], batch_norm: bool = False, dropout: float = 0.0, activation: str = "relu",
    init: str = "torch", out: bool = True,
) -> nn.Sequential:  # fmt: skip
    """Linear, batch norm, activation and dropout per hidden layer, then one linear output if `out`.

    Raises ValueError with the name of an invalid argument.
    """
    flag("batch_norm", batch_norm)
    probability("dropout", dropout)
    one_of("activation", activation, (*ACTIVATIONS, "dice"))
    layers: list[nn.Module] = []
    for width in widths("hidden", hidden, minimum=0 if out else 1):
        layers.append(nn.Linear(num_inputs, width))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(Dice(width) if activation == "dice" else ACTIVATIONS[activation]())
        if dropout:
            layers.append(nn.Dropout(dropout))
        num_inputs = width
    stack = nn.Sequential(*layers, *([nn.Linear(num_inputs, 1)] if out else []))
    draw(stack, init)
    return stack


def draw(module: nn.Module, init: str) -> None:
    """Draw the initial weights of every Linear in the module. "torch": keep torch's weights. "xavier": normal with
    variance 2 / (inputs + outputs) (Glorot and Bengio, AISTATS 2010), and zero biases."""
    if one_of("init", init, INITS) == "torch":
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def width_of(num_fields: int, num_numbers: int, embedding_dim: int) -> int:
    """Number of inputs of the deep part, F * D + X. Raises ValueError if it is 0."""
    if not (num_inputs := num_fields * embedding_dim + num_numbers):
        raise ValueError("the deep part has no inputs: there are no numbers, and model.embedding_dim is 0; raise it")
    return num_inputs


def side_by_side(embeddings_BFD: Tensor, numbers_BX: Tensor) -> Tensor:
    """[B, F * D + X] inputs of the MLP; if there are no numbers, a view instead of a copy."""
    flat_B = embeddings_BFD.flatten(1)
    return torch.cat([flat_B, numbers_BX], 1) if numbers_BX.shape[1] else flat_B
