"""Where the device tier is: what a workflow asks for, what this machine and NVML have, what is said if it is short."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.gpu import fake_cupy
from support.runs.harness import make_driver

from pipeline.device import gpu as gpu_module
from pipeline.device.device import RAM, STREAMS, Ram
from pipeline.device.gpu import GpuInfo, choose, read_gpus
from pipeline.errors import PipelineError
from pipeline.kernels import launch
from pipeline.preflight.check_model import check_memory
from pipeline.preflight.sizes import DoesNotFit
from pipeline.records import DONE


def test_without_a_gpu_auto_takes_ram_and_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(gpu_module, "_why_no_gpu", lambda: "CuPy sees no CUDA device")
    assert choose("auto") is RAM
    assert choose("cpu") is RAM
    with pytest.raises(ValueError, match="device is cuda, but no GPU is usable: CuPy sees no CUDA device; set device"):
        choose("cuda")


def test_work_in_ram_is_done_at_once_and_once():
    stream, calls = RAM.train, []
    stream.run(calls.append, 1)
    assert calls == [1]
    event = stream.record()
    assert event is DONE
    event.wait()
    stream.after(event)
    array = RAM.empty((3, 2), np.float32)
    assert array.ctypes.data % 64 == 0
    stream.copy(array, array)
    other = RAM.empty(6, np.uint32)
    array[:] = 1
    stream.copy(array, other)
    assert other.view(np.float32).tolist() == [1] * 6
    assert RAM.drain() == []


class Small(Ram):
    """RAM of so many bytes, of which some allocation is one too many."""

    def __init__(self, num_bytes):
        super().__init__()
        self.left = num_bytes

    def empty(self, shape, dtype):
        array = super().empty(shape, dtype)
        if array.nbytes > self.left:
            raise MemoryError(f"{array.nbytes} bytes wanted")
        self.left -= array.nbytes
        return array

    def free_bytes(self):
        return self.left


def test_too_little_device_memory_is_refused_with_the_plan(small_workflow, tmp_path):
    with pytest.raises(DoesNotFit) as raised:
        make_driver(small_workflow(), tmp_path, device=Small(1000))
    for part in (
        "out of memory (",
        "bytes wanted)",
        "device slab",
        "rows of",
        "1000 B are free",
        "lower storage.",
        "--set 'storage.",
    ):
        assert part in str(raised.value)


def test_running_out_of_memory_is_reported_with_the_plan(small_workflow, tmp_path):
    driver = make_driver(small_workflow(), tmp_path, device=Small(1 << 30))
    driver.crew.worker.tiers.device.left = 0
    with pytest.raises(PipelineError, match=r"train of block 0 failed: out of memory [\s\S]*device slab"):
        driver.run()


def test_a_device_slab_is_checked_against_its_memory(small_workflow):
    huge = small_workflow(storage={"device": "1 TiB"}).storage
    check_memory(huge, type("Gpu", (Small,), {"on_gpu": True})(1 << 40))
    with pytest.raises(ValueError, match=r"storage\.device, host, read and map add up to"):
        check_memory(huge, RAM)
    with pytest.raises(ValueError, match=r"storage.device is 2 KiB, and 1000 B of the GPU's memory are free"):
        check_memory(small_workflow(storage={"device": "2 KiB"}).storage, type("Gpu", (Small,), {"on_gpu": True})(1000))


@pytest.fixture
def gpu(monkeypatch):
    for name, module in zip(("cupy", "cupyx"), fake_cupy.make(), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(launch, "_stream", lambda pointer: pointer)
    return choose("auto")


def stream_of(stream):
    """CuPy's stream of one of the GPU's."""
    return fake_cupy.Stream.made[stream.pointer]


def test_gpu_streams_are_distinct(gpu):
    assert (gpu.name, gpu.model, gpu.on_gpu, gpu.free_bytes()) == ("cuda", "Some GPU", True, 123)
    assert len({getattr(gpu, name).pointer for name in STREAMS}) == len(STREAMS)
    host, there = gpu.pinned((2, 3), np.float32), gpu.empty((2, 3), np.float32)
    host[:] = 7
    gpu.up.copy(host, there)
    assert (there == 7).all()
    back = gpu.pinned(6, np.uint32)
    gpu.down.copy(there, back)
    assert back.view(np.float32).tolist() == [7] * 6
    gpu.down.copy(there[:0], back[:0])
    assert sys.modules["cupy"].calls == [(24, gpu.up.pointer), (24, gpu.down.pointer)]
    event = gpu.up.record()
    gpu.train.after(event)
    gpu.train.after(DONE)
    assert stream_of(gpu.train).log == [event.event]
    event.wait()
    assert event.event.waited


def test_a_gpu_copies_only_between_memory_of_equal_size(gpu):
    host, there = gpu.pinned(3, np.float32), gpu.empty(4, np.float32)
    with pytest.raises(ValueError, match="a copy of 16 bytes to memory of 12"):
        gpu.down.copy(there, host)
    assert not sys.modules["cupy"].calls


def test_work_goes_to_the_stream_that_it_is_given_to(gpu):
    class Kernel:
        def __getitem__(self, grid):
            *_, stream = grid
            return lambda: seen.append((stream, stream_of(gpu.train).entered))

    seen = []
    gpu.train.run(launch.launch, Kernel(), 1)
    launch.launch(Kernel(), 1)
    assert seen == [(gpu.train.pointer, 1), (0, 0)]


def test_each_gpu_timing_is_reported_once(gpu):
    with gpu.timed("train", 5, gpu.train):
        pass
    (span,) = gpu.drain()
    assert (span.stage, span.number) == ("gpu train", 5)
    assert span.stop > span.start
    assert gpu.drain() == []


def test_large_pinned_arrays_are_allocated_outside_the_pool(gpu, monkeypatch):
    """Large arrays have exactly their size: the pool would take up to twice of it."""
    monkeypatch.setattr(gpu_module, "POOLED_BYTES", 100)
    for rows in (1, 1000):
        array = gpu.pinned((rows, 5), np.uint64)
        array[:] = rows
        assert (array.shape, array.dtype, array.flags.c_contiguous) == ((rows, 5), np.uint64, True)
    gpu.release_memory()
    assert sys.modules["cupy"].calls == [8 * 5 * 1000, "freed"]


def test_a_tensor_becomes_an_array_without_a_copy(gpu):
    numbers = np.arange(3)
    assert gpu.to_device(numbers).tolist() == [0, 1, 2]
    tensor = torch.zeros(2)
    gpu.array(tensor)[:] = 4
    assert tensor.tolist() == [4, 4]


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
