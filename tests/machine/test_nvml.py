"""GPUs of a machine, from a library whose answers are given."""

import sys
from types import SimpleNamespace

import pytest

from pipeline.device.gpu import GpuInfo, read_gpus


class NVMLError(Exception):
    pass


class Nvml:
    """GPUs, the third of which does not report its memory."""

    NVMLError = NVMLError

    def __init__(self, num_gpus, driver=True):
        self.num_gpus, self.driver, self.open = num_gpus, driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu}abc"

    def nvmlDeviceGetMemoryInfo(self, gpu):
        if gpu == 2:
            raise self.NVMLError
        return SimpleNamespace(free=1000 + gpu)


def with_library(monkeypatch, library, visible=None):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_gpus_are_read_with_what_the_driver_reports(monkeypatch):
    library = Nvml(3)
    with_library(monkeypatch, library)
    assert read_gpus() == [GpuInfo(0, "GPU-0abc", 1000), GpuInfo(1, "GPU-1abc", 1001), GpuInfo(2, "GPU-2abc")]
    assert library.open == 0
    with_library(monkeypatch, Nvml(1, driver=False))
    assert read_gpus() == []


@pytest.mark.parametrize(
    ("visible", "left"), [("1,0", [0, 1]), ("GPU-2", [2]), ("", []), ("GPU-1abc, 2", [1, 2]), ("7", [])]
)
def test_gpus_hidden_from_cuda_are_left_out(monkeypatch, visible, left):
    with_library(monkeypatch, Nvml(3), visible)
    assert [gpu.index for gpu in read_gpus()] == left
