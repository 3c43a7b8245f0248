"""Advantages of the pipeline's dense part over the usual way, also given to the programs it is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.training.compiled import OF_TORCH

LossOf = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Loss of embeddings [B, F, D], first-order weights [B, F] and labels [B]."""


@dataclass(frozen=True)
class Advantages:
    compile: bool = False
    bfloat16: bool = False

    def loss_of(self, model: nn.Module) -> LossOf:
        """Forward pass and loss of a model without numbers, as these advantages run it."""

        def loss_of(embeddings: Tensor, first: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                output = model(torch.empty(len(labels), 0), embeddings, first)
            return binary_cross_entropy_with_logits(output.float(), labels)

        if not self.compile:
            return loss_of
        warnings.filterwarnings("ignore", OF_TORCH)
        return torch.compile(loss_of, dynamic=False, isolate_recompiles=True)

    @property
    def numbers(self) -> tuple[int, int]:
        """For the command line of a program."""
        return int(self.compile), int(self.bfloat16)


EAGER, COMPILED, COMPILED_BF16 = Advantages(), Advantages(compile=True), Advantages(compile=True, bfloat16=True)
