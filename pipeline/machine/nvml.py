"""GPUs according to NVIDIA's management library (NVML). Only this module imports `pynvml`, which comes with dask-cuda.

Without the library, the driver or a GPU, the list of GPUs is empty. Properties that the driver does not report are
unknown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuInfo:
    index: int
    """Number of the GPU in NVML."""
    uuid: str
    """Name of the GPU for CUDA_VISIBLE_DEVICES. Numbers would be ambiguous, since CUDA and NVML order GPUs
    differently."""
    free_bytes: int | None = None
    """Free bytes of GPU memory; None if unknown."""


def read_gpus() -> list[GpuInfo]:
    """Return the GPUs of this machine that CUDA_VISIBLE_DEVICES selects, by number."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [_found(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [gpu for gpu in found if _is_visible(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _found(nvml: Any, index: int) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        free_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError:
        free_bytes = None
    return GpuInfo(index, nvml.nvmlDeviceGetUUID(handle), free_bytes)


def _is_visible(found: GpuInfo, visible: str | None) -> bool:
    """True if `visible` names the GPU, by number or by a prefix of its UUID, as CUDA permits."""
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    return visible is None or any(n == str(found.index) or (n and found.uuid.startswith(n)) for n in names)
