"""A model's parameters, gradients and buffers as parts of one vector, so that a message is one call and no copy.

Q numbers of all parameters, each parameter from a multiple of 64 bytes on
"""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 16
"""Numbers from one place where a parameter or vector may begin to the next: matrix libraries are faster there. Vectors
can also be divided among 2, 4, 8 or 16 workers."""


class Flat:
    """`num_vectors` vectors [Q], zero at first, and behind them the model's float buffers, which lie there from now on.

    Parameters that are not trained are not part of it. ValueError: a parameter or buffer is not of float32.
    """

    def __init__(self, model: torch.nn.Module, num_vectors: int) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        _check_types(model)
        self.size = sum(_room(parameter.numel()) for parameter in self.parameters)
        self.num_buffers = _room(sum(buffer.numel() for buffer in buffers))
        device = next((tensor.device for tensor in (*self.parameters, *buffers)), None)
        self.numbers = torch.zeros(num_vectors * self.size + self.num_buffers, device=device)
        """All of it."""
        *self.vectors, self.buffers = self.numbers.split([self.size] * num_vectors + [self.num_buffers])
        begin = 0
        for buffer in buffers:
            _move(buffer, self.buffers[begin : begin + buffer.numel()].view_as(buffer))
            begin += buffer.numel()

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Return the part of each parameter, in its shape, of a vector [Q]."""
        rooms = vector.split([_room(parameter.numel()) for parameter in self.parameters])
        return [
            room[: parameter.numel()].view(parameter.shape)
            for room, parameter in zip(rooms, self.parameters, strict=True)
        ]

    def hold_gradients(self, vector: Tensor) -> None:
        """Backward adds to `vector` [Q] from now on."""
        for parameter, part in zip(self.parameters, self.parts(vector), strict=True):
            parameter.grad = part

    def hold_parameters(self, vector: Tensor) -> None:
        """The parameters lie in `vector` [Q] from now on."""
        for parameter, part in zip(self.parameters, self.parts(vector), strict=True):
            _move(parameter, part)


def _room(numbers: int) -> int:
    return -(-numbers // ALIGNED) * ALIGNED


def _move(tensor: Tensor, to: Tensor) -> None:
    to.copy_(tensor.detach())
    tensor.data = to


def _check_types(model: torch.nn.Module) -> None:
    named: list[tuple[str, Tensor]] = [(n, value) for n, value in model.named_parameters() if value.requires_grad]
    named += [(name, value) for name, value in model.named_buffers() if value.is_floating_point()]
    for name, value in named:
        if value.dtype is not torch.float32:
            raise ValueError(
                f"{name} of the dense model is of {value.dtype}; workers exchange float32, so make it of float32"
            )
