"""Arrays as torch sees them, and how torch is set up on a GPU. The memory is the same; nothing is copied."""

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
    """A tensor over the memory of a NumPy array, or of one of CuPy's."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def make_deterministic() -> None:
    """Have torch use algorithms that give the same bits every time on a GPU, and refuse what has none."""
    # cuBLAS chooses by the workspace that it finds free; it looks at this when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # What it would fill is overwritten before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
