"""GPUs according to NVIDIA's management library (NVML). Only this module imports `pynvml`, which comes with dask-cuda.

Without the library, the driver or a GPU, the list of GPUs is empty. Properties that the driver does not report are
unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Address = tuple[int, int, int]
"""PCI domain, bus, device."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    index: int
    """Number of the GPU in NVML."""
    uuid: str
    """Name of the GPU for CUDA_VISIBLE_DEVICES. Numbers would be ambiguous, since CUDA and NVML order GPUs
    differently."""
    node: int | None
    free_bytes: int | None = None
    """Free bytes of GPU memory; None if unknown."""


def read_gpus(visible: str | None, node_of: Callable[[Address], int | None]) -> list[GpuInfo]:
    """Return the GPUs selected by `visible`, the value of CUDA_VISIBLE_DEVICES. `node_of`: NUMA node of a PCI
    address."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [_found(pynvml, index, node_of) for index in range(pynvml.nvmlDeviceGetCount())]
        return [gpu for gpu in found if _is_visible(gpu, visible)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _found(nvml: Any, index: int, node_of: Callable[[Address], int | None]) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    try:
        free_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError:
        free_bytes = None
    return GpuInfo(index, nvml.nvmlDeviceGetUUID(handle), node_of((pci.domain, pci.bus, pci.device)), free_bytes)


def _is_visible(found: GpuInfo, visible: str | None) -> bool:
    """True if `visible` names the GPU, by number or by a prefix of its UUID, as CUDA permits."""
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    return visible is None or any(n == str(found.index) or (n and found.uuid.startswith(n)) for n in names)
