"""GPUs according to NVIDIA's management library (NVML). Only this module imports `pynvml`, which comes with dask-cuda.

Without the library, the driver or a GPU, the list of GPUs is empty. Properties that the driver does not report are
unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of NVML's topology levels in `nvidia-smi topo -m`. Two GPUs of one board (level 0) share a switch, too."""

Links = tuple[tuple[str, ...], ...]
Address = tuple[int, int, int]
"""PCI domain, bus, device."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    index: int
    """Number of the GPU in NVML."""
    uuid: str
    """Name of the GPU for CUDA_VISIBLE_DEVICES; numbers would not do, since CUDA counts in another order than NVML."""
    node: int | None
    free_bytes: int | None = None
    """Free bytes of its memory; None if unknown."""


def read_gpus(visible: str | None, node_of: Callable[[Address], int | None]) -> tuple[list[GpuInfo], Links]:
    """Return the GPUs selected by `visible`, the value of CUDA_VISIBLE_DEVICES, and their links (`Topology.links`).
    `node_of`: NUMA node of a PCI address."""
    try:
        import pynvml
    except ImportError:
        return [], ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], ()
    try:
        handles = {n: pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())}
        gpus = [_found(pynvml, n, handle, node_of) for n, handle in handles.items()]
        seen = [gpu for gpu in gpus if _is_visible(gpu, visible)]
        return seen, _links(pynvml, [handles[gpu.index] for gpu in seen])
    except pynvml.NVMLError:
        return [], ()
    finally:
        pynvml.nvmlShutdown()


def _found(nvml: Any, index: int, handle: Any, node_of: Callable[[Address], int | None]) -> GpuInfo:
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    node = node_of(_address(nvml.nvmlDeviceGetPciInfo(handle)))
    return GpuInfo(index, nvml.nvmlDeviceGetUUID(handle), node, int(memory.free) if memory else None)


def _is_visible(found: GpuInfo, visible: str | None) -> bool:
    """True if `visible` names the GPU, by its number or by the beginning of its UUID, as CUDA permits."""
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    return visible is None or any(n == str(found.index) or (n and found.uuid.startswith(n)) for n in names)


def _links(nvml: Any, handles: list[Any]) -> Links:
    ends = [Counter(_link_ends(nvml, handle)) for handle in handles]
    addresses = [_address(nvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]

    def between(a: int, b: int) -> str:
        # Through a switch every GPU reaches every other one over all of its links.
        if num_links := ends[a][addresses[b]] or min(ends[a][None], ends[b][None]):
            return f"NV{num_links}"
        return PATHS.get(_ask(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handles[a], handles[b]), "")

    numbers = range(len(handles))
    return tuple(tuple("X" if a == b else between(a, b) for b in numbers) for a in numbers)


def _link_ends(nvml: Any, handle: Any) -> Iterator[Address | None]:
    """Yield, for every active NVLink, the address of the device at its other end, or None for a switch."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) != nvml.NVML_FEATURE_ENABLED:
            continue
        kind = _ask(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            yield None
        elif end := _ask(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link):
            yield _address(end)


def _address(pci: Any) -> Address:
    return pci.domain, pci.bus, pci.device


def _ask(nvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """Call an NVML function; None if the driver or this GPU does not answer."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None
