"""Torch tensors over the memory of arrays, without a copy, and torch's setup on a GPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.device.device import Device


def torch_device(device: Device) -> torch.device:
    return torch.device("cuda" if device.name == "cuda" else "cpu")


def tensor_of(array: Any) -> Tensor:
    """Wrap the memory of a NumPy or CuPy array as a tensor."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def make_deterministic() -> None:
    """Make torch use deterministic algorithms on a GPU, and reject operations that have none."""
    # cuBLAS chooses an algorithm by its free workspace; it reads this variable at its first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Uninitialized memory is always overwritten before it is read here, so filling it would waste time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
